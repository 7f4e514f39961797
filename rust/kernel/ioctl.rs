// SPDX-License-Identifier: GPL-2.0

//! The driver's ioctl table.
//!
//! [`declare_skua_ioctls!`](crate::declare_skua_ioctls) is `kernel::declare_drm_ioctls!` with the
//! structures taken from the local [`uapi`](super::uapi) instead of the kernel's. The DRM core
//! copies the argument in and out: a shorter structure from userspace is extended by zeros, a
//! longer one is cut, and as many bytes as userspace passed are copied back. So structures can grow
//! at the end.
//!
//! # Examples
//!
//! ```ignore
//! impl drm::Driver for SkuaDriver {
//!     crate::declare_skua_ioctls! {
//!         (SKUA_QUERY, drm_skua_query, ioctl::RENDER_ALLOW, File::query),
//!         // Waits for what others do, of a device that may be gone meanwhile.
//!         (SKUA_FENCE_WAIT, drm_skua_fence_wait, ioctl::RENDER_ALLOW, File::fence_wait, waits),
//!     }
//! }
//! ```

/// Declares the `IOCTLS` of a [`drm::Driver`](kernel::drm::Driver). To be used within its `impl`.
///
/// Each entry is `(NAME, structure, flags, handler)`, in the order of the ioctl numbers, from 0,
/// without gaps, which is checked: `DRM_IOCTL_<NAME>` must exist in `uapi` with that structure. A
/// handler is
///
/// ```ignore
/// fn foo(device: &kernel::drm::Device<Self, kernel::drm::Registered>,
///        reg_data: &Self::RegistrationData<'_>,
///        data: &mut uapi::structure,
///        file: &kernel::drm::File<Self::File>,
/// ) -> Result<u32>
/// ```
///
/// While one runs, no DRM device is unplugged. A handler that waits for long is marked `waits`: it
/// gets `data` and `file` alone, of a device that may be gone.
#[macro_export]
macro_rules! declare_skua_ioctls {
    ( $(($cmd:ident, $struct:ident, $flags:expr, $func:expr $(, $mode:ident)?)),* $(,)? ) => {
        const IOCTLS: &'static [::kernel::drm::ioctl::DrmIoctlDescriptor] = {
            use $crate::ext::uapi::*;
            const _:() = {
                let i: u32 = ::kernel::uapi::DRM_COMMAND_BASE;
                $(
                    let cmd: u32 = ::kernel::macros::concat_idents!(DRM_IOCTL_, $cmd) as u32;
                    ::core::assert!(i == ::kernel::ioctl::_IOC_NR(cmd));
                    ::core::assert!(::core::mem::size_of::<$crate::ext::uapi::$struct>() ==
                                    ::kernel::ioctl::_IOC_SIZE(cmd));
                    let i: u32 = i + 1;
                )*
                let _ = i;
            };

            let ioctls = &[$(
                ::kernel::drm::ioctl::internal::drm_ioctl_desc {
                    cmd: ::kernel::macros::concat_idents!(DRM_IOCTL_, $cmd) as u32,
                    func: {
                        /// The ioctl's entry from the DRM core.
                        ///
                        /// # Safety
                        ///
                        /// To be called by `drm_ioctl()`, for a device and a file of the driver
                        /// that has this table, with an argument of the ioctl's size.
                        #[expect(non_snake_case, reason = "the name of the ioctl, in traces")]
                        unsafe extern "C" fn $cmd(
                                raw_dev: *mut ::kernel::drm::ioctl::internal::drm_device,
                                raw_data: *mut ::core::ffi::c_void,
                                raw_file: *mut ::kernel::drm::ioctl::internal::drm_file,
                        ) -> ::core::ffi::c_int {
                            $crate::skua_ioctl_body!(
                                raw_dev, raw_data, raw_file, $struct, $func $(, $mode)?
                            )
                        }
                        Some($cmd)
                    },
                    flags: $flags,
                    name: ::kernel::str::as_char_ptr_in_const_context(
                        ::kernel::c_str!(::core::stringify!($cmd)),
                    ),
                }
            ),*];
            ioctls
        };
    };
}

/// What an entry of the table does; a part of [`declare_skua_ioctls!`](crate::declare_skua_ioctls).
#[macro_export]
macro_rules! skua_ioctl_body {
    ($dev:ident, $data:ident, $file:ident, $struct:ident, $func:expr) => {
        {
            let dev: &::kernel::drm::device::Device<_, ::kernel::drm::Ioctl> =
                // SAFETY: The DRM core keeps the device during the call, it was
                // registered before, and it is one of the driver that declares
                // this table, which the anchor below ties to the handler's type.
                unsafe { ::kernel::drm::device::Device::from_raw($dev) };

            // Never called: ties the type of `dev` to that of the handler.
            #[expect(unreachable_code, reason = "it is there for its types")]
            let _ = || {
                let ptr = ::kernel::drm::ioctl::internal::__dev_ctx_cast(
                    ::core::ptr::from_ref(dev),
                );
                $func(
                    // SAFETY: Never executed.
                    unsafe { &*ptr },
                    unreachable!(),
                    unreachable!(),
                    unreachable!(),
                )
            };

            // The handler must not ask for longer lifetimes than it gets.
            let _: for<'a> fn(&'a _, &'a _, &'a mut _, &'a _) -> _ = $func;

            let Some(guard) = dev.registration_guard() else {
                return ::kernel::error::code::ENODEV.to_errno();
            };

            // SAFETY: The core passes `_IOC_SIZE(cmd)` bytes, which is the size of
            // the structure as asserted above, owned by this call alone; any bytes
            // are a valid structure (`FromBytes`).
            let data = unsafe {
                &mut *($data.cast::<$crate::ext::uapi::$struct>())
            };
            // SAFETY: The core passes the open file of this driver.
            let file = unsafe { ::kernel::drm::File::from_raw($file) };

            $crate::ext::drm_driver::DriverExt::before_ioctl(&*guard);
            match guard.registration_data_with(|reg_data| {
                $func(&*guard, reg_data, data, file)
            }) {
                Err(e) => e.to_errno(),
                Ok(i) => i.try_into()
                    .unwrap_or(::kernel::error::code::ERANGE.to_errno()),
            }
        }
    };
    ($dev:ident, $data:ident, $file:ident, $struct:ident, $func:expr, waits) => {
        {
            let _ = $dev;
            // The handler must not ask for longer lifetimes than it gets.
            let func: for<'a> fn(&'a mut _, &'a _) -> ::kernel::error::Result<u32> = $func;
            // SAFETY: As in the other arm.
            let data = unsafe { &mut *($data.cast::<$crate::ext::uapi::$struct>()) };
            // SAFETY: The core passes the open file of this driver, which has files of one type.
            let file = unsafe { ::kernel::drm::File::from_raw($file) };
            match func(data, file) {
                Err(e) => e.to_errno(),
                Ok(i) => i.try_into().unwrap_or(::kernel::error::code::ERANGE.to_errno()),
            }
        }
    };
}
