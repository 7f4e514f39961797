// SPDX-License-Identifier: GPL-2.0

//! What [`drm::File`] does not offer: the client's number, and the C structure for this folder.

use kernel::{
    bindings,
    drm, //
};

/// The C structure of an open DRM file.
pub(super) fn as_raw<F: drm::file::DriverFile>(file: &drm::File<F>) -> *mut bindings::drm_file {
    // CAST: `drm::File` is a transparent wrapper of `Opaque<drm_file>`, whose content may be written
    // through a shared reference.
    core::ptr::from_ref(file)
        .cast_mut()
        .cast::<bindings::drm_file>()
}

/// The client's number, unique since boot: `drm-client-id` of fdinfo.
pub(crate) fn client_id<F: drm::file::DriverFile>(file: &drm::File<F>) -> u64 {
    // SAFETY: The file is valid by its type invariant; the field is set when it is opened and never
    // changes.
    unsafe { (*as_raw(file)).client_id }
}
