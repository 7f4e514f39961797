// SPDX-License-Identifier: GPL-2.0

//! What ioctls do with contexts: submissions, and how important the work of one is, or that of all
//! of a client's.

use crate::{
    ext::{
        capability,
        device,
        drm_driver::DriverExt,
        uapi::*, //
    },
    fences::{
        gate::Wake,
        hold::{
            self,
            MAX_REQUESTS, //
        }, //
    },
    few::Few,
    gpu::{
        self,
        SkuaDriver, //
    },
    ioctl::{
        file::{
            Data,
            Device,
            File,
            SkuaFile, //
        },
        query,
        syncs::{
            self,
            Values, //
        },
        user_array, //
    },
    policy::scheduler::{
        self,
        Class, //
    },
    spec::number::EngineIndex,
    submit::{
        context::{
            requests::Request,
            Context,
            Status, //
        },
        submission::{
            Buffer,
            MAX_BUFFERS, //
        }, //
    }, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Contexts of one client at a time, those counted that are destroyed and not gone yet.
pub(crate) const CLIENT_CONTEXTS: u64 = 256;

impl File {
    /// The handle of `context` is gone. A device that does not answer may still reach what is its.
    pub(crate) fn let_go_of_context(&self, context: Arc<Context>) {
        // What another thread has made meanwhile, too.
        self.free_allocations(&context);
        context.destroy();
        self.free_allocations(&context);
        // Not freed here: a client that lacks memory could not have its save area freed.
        self.dev.reapers.contexts.bury(context);
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_CREATE`
    pub(crate) fn context_create(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_create,
        file: &SkuaFile,
    ) -> Result<u32> {
        dev.check_health()?;
        let this = file.inner();
        let vm = this.vm(args.vm)?;
        let engine = EngineIndex::new(args.engine).ok_or(EINVAL)?;
        let exists = dev.client_engines().any(|(index, _)| index == engine);
        if !exists || args.flags != 0 {
            return Err(EINVAL);
        }
        let place = this.context_quota.take(dev, 1).ok_or(ENOSPC)?;
        let (context, handle) = {
            let class = this.class.lock();
            let level = scheduler::Level::NORMAL.within(*class);
            let context = Context::new(dev, &vm, engine, level, &this.usage, place)?;
            (context.clone(), this.contexts.lock().insert(context))
        };
        if handle.is_err() {
            context.destroy();
        }
        args.context = handle?;
        // If its device has failed, or was destroyed meanwhile without this one, it takes no work.
        if vm.device().check().is_err() {
            context.mark(Status::Lost);
            // Another thread may have guessed its handle.
            Wake::wake(&context);
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_SET_PRIORITY`
    pub(crate) fn context_set_priority(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_set_priority,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let context = this.context(args.context)?;
        let engine = dev.engine(context.engine())?;
        const IN_PROCESS: u32 = DRM_SKUA_CONTEXT_PRIORITY_IN_PROCESS;
        if args.flags & !IN_PROCESS != 0 || args.pad != 0 {
            return Err(EINVAL);
        }
        if args.flags & IN_PROCESS != 0 {
            let priority = scheduler::InProcess::of(args.priority).ok_or(EINVAL)?;
            engine.set_in_process(dev, &context, priority);
            return Ok(0);
        }
        let level = scheduler::Level::of(args.priority).ok_or(EINVAL)?;
        if level > scheduler::Level::NORMAL && !capability::sys_nice() {
            return Err(EACCES);
        }
        let class = this.class.lock();
        context.set_own_level(level);
        engine.set_level(dev, &context, level.within(*class));
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_SET_PRIORITY_CLASS`
    pub(crate) fn set_priority_class(
        dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_set_priority_class,
        file: &SkuaFile,
    ) -> Result<u32> {
        let new = Class::of(args.priority_class).ok_or(EINVAL)?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        if new > Class::Normal && !capability::sys_nice() {
            return Err(EACCES);
        }
        let this = file.inner();
        let mut class = this.class.lock();
        *class = new;
        for context in this.contexts.lock().iter() {
            // Always: a context is made for an engine that there is.
            if let Ok(engine) = dev.engine(context.engine()) {
                engine.set_level(dev, context, context.own_level().within(new));
            }
        }
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_DESTROY`
    pub(crate) fn context_destroy(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_destroy,
        file: &SkuaFile,
    ) -> Result<u32> {
        let this = file.inner();
        let context = this.contexts.lock().remove(args.context, args.pad)?;
        this.let_go_of_context(context);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_CONTEXT_STATE`
    pub(crate) fn context_state(
        _dev: &Device,
        _data: &Data<'_>,
        args: &mut drm_skua_context_state,
        file: &SkuaFile,
    ) -> Result<u32> {
        let context = file.inner().context(args.context)?;
        if args.pad != 0 {
            return Err(EINVAL);
        }
        query::context_state(&context, args);
        Ok(0)
    }

    /// `DRM_IOCTL_SKUA_SUBMIT`
    pub(crate) fn submit(args: &mut drm_skua_submit, file: &SkuaFile) -> Result<u32> {
        let this = file.inner();
        let dev = &*this.dev;
        let bound = device::enter(dev).ok_or(ENODEV)?;
        SkuaDriver::before_ioctl(&bound);
        dev.check_health()?;
        let context = this.context(args.context)?;
        if args.flags != 0 {
            return Err(EINVAL);
        }
        let mut buffers = Few::Empty;
        user_array::for_each(&args.buffers, MAX_BUFFERS, |buffer: drm_skua_buffer| {
            if buffer.flags != 0 {
                return Err(EINVAL);
            }
            buffers.push(Buffer::new(buffer.va, buffer.size)?)
        })?;
        let mut values = Values::new(context.clone());
        let (waits, signals) = syncs::read(file, &args.syncs, Some(&mut values))?;
        let request = Request {
            buffers,
            waits,
            signals,
        };
        context.check(MAX_REQUESTS)?;
        if !request.buffers.is_empty() {
            context.prepare_saving(gpu::parent(&bound))?;
        }
        // It may wait for others' turns, which is in the way of nobody who unplugs a device.
        drop(bound);
        if let Err(error) = hold::submit(&context, request, values.into_waits()) {
            dev.check_health()?;
            return Err(error);
        }
        dev.counters
            .submissions
            .fetch_add(1, kernel::sync::atomic::Relaxed);
        Ok(0)
    }
}
