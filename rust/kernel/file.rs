// SPDX-License-Identifier: GPL-2.0

//! What [`drm::File`] does not offer: a device's clients, what objects one has, and the C structure
//! for this folder.

use super::{
    device,
    shim, //
};
use kernel::{
    bindings,
    drm::{
        self,
        gem::IntoGEMObject, //
    },
    error::to_result,
    prelude::*, //
};

/// The C structure of an open DRM file.
pub(super) fn as_raw<F: drm::file::DriverFile>(file: &drm::File<F>) -> *mut bindings::drm_file {
    // CAST: `drm::File` is a transparent wrapper of `Opaque<drm_file>`, whose content may be
    // written through a shared reference.
    core::ptr::from_ref(file)
        .cast_mut()
        .cast::<bindings::drm_file>()
}

/// Frees a client's handle of a GEM object, as `DRM_IOCTL_GEM_CLOSE` does. `ENOENT`.
pub(crate) fn delete_handle<F: drm::file::DriverFile>(file: &drm::File<F>, handle: u32) -> Result {
    // SAFETY: The file is valid.
    to_result(unsafe { bindings::drm_gem_handle_delete(as_raw(file), handle) }).map_err(|_| ENOENT)
}

/// Whether a client has a handle to `obj`, or a dma-buf of it exists: for fdinfo, of an object to
/// which the asking client has no handle.
pub(crate) fn is_shared<O: IntoGEMObject>(obj: &O) -> bool {
    // SAFETY: The object is valid. Both fields may change at any time, as for C's
    // `drm_gem_object_is_shared_for_memory_stats()`, which reads them as this does.
    unsafe {
        let raw = obj.as_raw();
        (&raw const (*raw).handle_count).read_volatile() > 0
            || !(&raw const (*raw).dma_buf).read_volatile().is_null()
    }
}

/// Calls `f` with each object that `file` has a handle to, and whether others have it too (another
/// client, or a dma-buf): what fdinfo's memory keys need.
///
/// What gets a handle, or loses it, meanwhile may be missing. Process context, no locks held.
///
/// # Examples
///
/// ```ignore
/// let mut stats = MemoryStats::default();
/// file::for_each_object(file, |obj, shared| match shared {
///     true => stats.shared += obj.size() as u64,
///     false => stats.private += obj.size() as u64,
/// });
/// ```
pub(crate) fn for_each_object<F, D, C>(file: &drm::File<F>, mut f: C)
where
    F: drm::file::DriverFile<Driver = D>,
    D: drm::Driver<File = F>,
    C: FnMut(&D::Object, bool),
{
    /// Calls the closure.
    ///
    /// # Safety
    ///
    /// `obj` must be an object of type `O`, `data` an exclusively borrowed `C`.
    unsafe extern "C" fn visit<O: IntoGEMObject, C: FnMut(&O, bool)>(
        obj: *mut bindings::drm_gem_object,
        shared: bool,
        data: *mut c_void,
    ) {
        // SAFETY: `data` is the closure that `for_each_object()` passes, borrowed exclusively for
        // that call. The file's driver has one type of object, and the caller holds a reference
        // to it.
        unsafe { (*data.cast::<C>())(O::from_raw(obj), shared) }
    }

    // SAFETY: The file is valid; `visit` is called, during this call only, with `f`.
    unsafe {
        shim::skua_file_visit_objects(
            as_raw(file),
            (&raw mut f).cast(),
            Some(visit::<D::Object, C>),
        );
    }
}

/// A client, as the DRM core knows it.
pub(crate) struct Client<'a, F: drm::file::DriverFile> {
    /// Its open file.
    pub(crate) file: &'a drm::File<F>,
    /// `drm-client-id` of its fdinfo.
    pub(crate) id: u64,
    /// The process that uses the file, as the calling one sees it; 0 if it does not.
    pub(crate) pid: i32,
    /// The process' name, or `?` if it has ended.
    pub(crate) name: &'a CStr,
}

/// Calls `f` with each client that has a file of `dev` open, under the core's mutex of files.
pub(crate) fn for_each_client<F, D, C>(dev: &drm::Device<D>, mut f: C)
where
    F: drm::file::DriverFile<Driver = D>,
    D: drm::Driver<File = F>,
    C: FnMut(Client<'_, F>),
{
    /// Calls the closure.
    ///
    /// # Safety
    ///
    /// `file` must be of a device whose driver has files of `F`, and stay for this call; `name`
    /// must be a string that stays for this call, and `data` an exclusively borrowed `C`.
    unsafe extern "C" fn visit<F: drm::file::DriverFile, C: FnMut(Client<'_, F>)>(
        file: *mut bindings::drm_file,
        id: u64,
        pid: c_int,
        name: *const c_char,
        data: *mut c_void,
    ) {
        // SAFETY: The file is in the device's list, whose mutex is held: it is open, of `F`, and
        // not freed before it has left the list. The name is a string on the caller's stack, and
        // `data` the closure that `for_each_client()` passes, borrowed exclusively for that call.
        unsafe {
            (*data.cast::<C>())(Client {
                file: drm::File::from_raw(file),
                id,
                pid,
                name: CStr::from_char_ptr(name),
            });
        }
    }

    // SAFETY: The device is valid; `visit` is called, during this call only, with `f`.
    unsafe {
        shim::skua_drm_visit_clients(
            device::as_raw(dev),
            (&raw mut f).cast(),
            Some(visit::<F, C>),
        );
    }
}
