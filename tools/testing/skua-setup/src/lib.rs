// SPDX-License-Identifier: MIT

//! A small checkout with a cache of its own, in which tests run `make` and `scripts/`.
//!
//! Nothing is fetched or built: `mmdebstrap` and `bwrap`, the two programs through which the
//! set-up does its work, are stubs that come first on the `PATH`.

#![forbid(unsafe_code)]

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// What a checkout needs so that its set-up runs.
const FILES: [&str; 4] = ["Makefile", "scripts", "kernel", "samples/skua-filter/src"];

/// Hands out an empty root file system.
const MMDEBSTRAP: &str = "#!/bin/sh
dir=$(mktemp -d) && mkdir $dir/etc && tar -C $dir -c . && rm -r $dir
";

/// Does of the sandbox's commands what the set-up looks at: a kernel's configuration. Else it
/// writes its arguments, a line each, to the file that `$STUB` names.
const BWRAP: &str = r#"#!/bin/bash
build=
for ((at = 1; at < $#; at++)); do
	next=$((at + 2))
	[[ ${!at} != --bind || ${!next} != /srv/build ]] || { next=$((at + 1)); build=${!next}; }
done
case "$*" in
*allnoconfig) cp "$build/skua.config" "$build/.config" ;;
esac
[[ -z $STUB ]] || printf '%s\n' "$@" >"$STUB"
[[ -z $STUB_RUNS ]] || eval "$STUB_RUNS"
"#;

/// What a command came to.
#[derive(Debug)]
pub struct End {
    /// Whether it ended with status 0.
    pub success: bool,
    /// Its standard output and error, in the order in which they were written.
    pub text: String,
}

/// A checkout, its cache, and the stubs.
#[derive(Debug)]
pub struct Checkout {
    dir: TempDir,
    /// The cache that commands are told of; need not exist.
    pub cache: PathBuf,
}

impl Checkout {
    /// Copies what the set-up needs of this tree.
    ///
    /// # Errors
    ///
    /// What copying returned.
    pub fn new() -> io::Result<Self> {
        let dir = tempfile::tempdir()?;
        let tree = dir.path().join("tree");
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        for file in FILES {
            let to = tree.join(file);
            fs::create_dir_all(to.parent().unwrap_or(&tree))?;
            let copied = Command::new("cp")
                .arg("-rT")
                .args([root.join(file), to])
                .status()?;
            if !copied.success() {
                return Err(io::Error::other(file));
            }
        }
        let cache = dir.path().join("cache");
        let checkout = Self { dir, cache };
        checkout.stub("mmdebstrap", MMDEBSTRAP)?;
        checkout.stub("bwrap", BWRAP)?;
        checkout.stub("newuidmap", "#!/bin/sh\n")?;
        Ok(checkout)
    }

    /// The root of the checkout.
    pub fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    /// Puts a program first on the `PATH` of what [`run`](Self::run) runs.
    ///
    /// # Errors
    ///
    /// What writing it returned.
    pub fn stub(&self, name: &str, text: &str) -> io::Result<()> {
        let bin = self.dir.path().join("bin");
        fs::create_dir_all(&bin)?;
        fs::write(bin.join(name), text)?;
        fs::set_permissions(bin.join(name), fs::Permissions::from_mode(0o755))
    }

    /// Runs a script of bash in the root of the checkout, with `arguments` as `$1`, `$2`, ….
    ///
    /// # Errors
    ///
    /// If bash cannot be run.
    pub fn run(&self, script: &str, arguments: &[&str]) -> io::Result<End> {
        let bin = self.dir.path().join("bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new("bash")
            .args(["-c", &format!("exec 2>&1\n{script}"), "bash"])
            .args(arguments)
            .current_dir(self.tree())
            .env_clear()
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("HOME", self.dir.path())
            .env("SKUA_CACHE", &self.cache)
            .env("SKUA_MIRROR", "http://mirror.invalid/debian")
            .stdin(Stdio::null())
            .output()?;
        Ok(End {
            success: output.status.success(),
            text: String::from_utf8_lossy(&output.stdout).into_owned(),
        })
    }

    /// Names in the cache that are not hidden, sorted.
    pub fn entries(&self) -> Vec<String> {
        let names = fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let mut names: Vec<String> = names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }
}
