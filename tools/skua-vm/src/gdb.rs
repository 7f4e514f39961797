// SPDX-License-Identifier: MIT

//! A debugger for the guest's kernel: QEMU's GDB stub on a socket in `out`, and a script that
//! connects a GDB of the sandbox to it, with the symbols of kernel and module (`make gdb`).

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use skua_guest::job::MODULE_GDB;

use crate::Parts;

/// QEMU's end of the connection. There is one in a checkout.
pub(crate) const SOCKET: &str = "out/gdb.sock";
/// The file of what GDB is to do first.
const SCRIPT: &str = "out/gdb";

/// Whether the guest waits for the debugger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Gdb {
    /// It runs; a debugger may come.
    #[value(alias = "1")]
    On,
    /// It does not begin before a debugger lets it.
    Wait,
}

/// Writes the script for a guest with this output directory, and says what to type.
///
/// # Errors
///
/// If there are no symbols of the kernel, or the script cannot be written.
pub(crate) fn announce(parts: &Parts, output: &Path) -> Result<()> {
    let vmlinux = parts.build().context("the kernel has no build tree")?;
    let vmlinux = vmlinux.join("vmlinux");
    let module = output.join(MODULE_GDB);
    // An earlier guest's addresses would be wrong ones.
    if module.exists() {
        fs::remove_file(&module)?;
    }
    fs::write(SCRIPT, script(&vmlinux, &module))?;
    println!(
        "debugger: type `make gdb` with the same KERNEL= in another terminal of this checkout"
    );
    Ok(())
}

fn script(vmlinux: &Path, module: &Path) -> String {
    format!(
        "set confirm off\n\
         file {}\n\
         define module\nsource {module}\nend\n\
         document module\nReads skua.ko's symbols, once the guest has loaded it.\nend\n\
         target remote {SOCKET}\n\
         python import os; os.path.exists('{module}') and gdb.execute('module')\n",
        vmlinux.display(),
        module = module.display(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_reads_symbols_before_it_connects() {
        let text = script(Path::new("/b/vmlinux"), Path::new("out/shell/module.gdb"));
        let at = |words: &str| text.find(words).expect(words);
        assert!(at("file /b/vmlinux\n") < at("target remote out/gdb.sock\n"));
        assert!(text.contains("source out/shell/module.gdb\n"));
    }
}
