// SPDX-License-Identifier: MIT

//! Makes Rust of `include/uapi/drm/skua_drm.h` and of what it stands on.

use std::{env, error::Error, path::PathBuf};

use bindgen::callbacks::{EnumVariantValue, ParseCallbacks};

/// The prefix of `uapi.h` for what is a macro in C.
const PREFIX: &str = "SKUA_NUMBER_";

/// Names and comments as Rust wants them.
#[derive(Debug)]
struct Names;

impl ParseCallbacks for Names {
    fn enum_variant_name(
        &self,
        _: Option<&str>,
        name: &str,
        _: EnumVariantValue,
    ) -> Option<String> {
        name.strip_prefix(PREFIX).map(str::to_owned)
    }

    /// Takes the kernel-doc markup off: `struct x - Text` and `@member: Text` become `Text`.
    fn process_comment(&self, comment: &str) -> Option<String> {
        let mut lines: Vec<&str> = comment.lines().map(str::trim).collect();
        if let Some(first) = lines.first_mut() {
            let markup = if first.starts_with('@') { ": " } else { " - " };
            if let Some((_, text)) = first.split_once(markup) {
                *first = text;
            } else if first.starts_with('@') {
                *first = "";
            }
        }
        // What rustdoc would take for a link or for markup stays as it stands.
        Some(
            lines
                .join("\n")
                .replace('[', "\\[")
                .replace('<', "\\<")
                .trim()
                .to_owned(),
        )
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let uapi = here.join("../../include/uapi/drm");
    let wrapper = here.join("uapi.h");
    println!("cargo:rerun-if-changed={}", wrapper.display());
    println!(
        "cargo:rerun-if-changed={}",
        uapi.join("skua_drm.h").display()
    );

    bindgen::Builder::default()
        .header(wrapper.display().to_string())
        .clang_arg(format!("-I{}", uapi.display()))
        // `drm.h`, as the kernel's headers or libdrm install it.
        .clang_args(["-idirafter", "/usr/include/drm"])
        .clang_args(["-idirafter", "/usr/include/libdrm"])
        .clang_arg("-fparse-all-comments")
        .allowlist_item("(DRM_SKUA|DRM_IOCTL_SKUA|drm_skua)_.*")
        .allowlist_item("(DRM_SYNCOBJ|drm_syncobj)_.*")
        .allowlist_item("(SYNC_IOC|DMA_BUF_SYNC|DMA_BUF_IOCTL|DRM_IOCTL)_.*")
        .allowlist_item("DRM_(COMMAND|CAP|PRIME_CAP|CLOEXEC|RDWR).*")
        .allowlist_item("drm_(version|get_cap|gem_(close|flink|open)|prime_handle)")
        .allowlist_item("sync_(file_info|fence_info|merge_data)")
        .allowlist_item("dma_buf_(sync|import_sync_file)")
        .allowlist_item(format!("{PREFIX}.*"))
        .prepend_enum_name(false)
        .derive_default(true)
        .derive_eq(true)
        .layout_tests(true)
        .use_core()
        .parse_callbacks(Box::new(Names))
        .generate()?
        .write_to_file(PathBuf::from(env::var("OUT_DIR")?).join("uapi.rs"))?;
    Ok(())
}
