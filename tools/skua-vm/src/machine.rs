// SPDX-License-Identifier: MIT

//! One virtual machine: the GPU server, QEMU, and what a test may do to them from outside.
//!
//! Nothing outlives a [`Machine`]: dropping it kills both processes. If `skua-vm` itself is
//! killed, the sandbox's PID namespace ends with it.

use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{kill, Signal};
use nix::unistd::Pid;
use serde_json::json;
use skua_guest::job::{Job, FILE, PRODUCTS};
use tempfile::TempDir;

use crate::Parts;

/// How long a process may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(20);

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accel {
    /// QEMU's translator: everywhere.
    Tcg,
    /// KVM if it really works, else TCG.
    Auto,
}

/// What a machine is like, beyond its [`Parts`].
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// More options of the GPU server.
    pub(crate) gpu: Vec<String>,
    /// More words of the kernel command line.
    pub(crate) cmdline: String,
    /// Put an IOMMU before the GPU.
    pub(crate) iommu: bool,
    /// Count instructions: one CPU whose nanoseconds are instructions.
    pub(crate) icount: bool,
    /// The console is the user's terminal.
    pub(crate) interactive: bool,
    /// The guest's output share: job and logs go here too.
    pub(crate) output: PathBuf,
}

/// The memory of a guest, in MiB; a debug kernel needs more.
const MEMORY: u32 = 1024;

/// A running machine.
#[derive(Debug)]
pub(crate) struct Machine {
    gpu: Gpu,
    qemu: Child,
    /// The second serial port.
    control: UnixStream,
    _directories: [TempDir; 2],
}

impl Machine {
    /// Starts the GPU server and QEMU with a job for the guest.
    ///
    /// # Errors
    ///
    /// If a part is missing or a process does not start; its log is quoted.
    pub(crate) fn start(parts: &Parts, config: &Config, job: &Job) -> Result<Self> {
        let output = config.output.canonicalize()?;
        std::fs::write(output.join(FILE), serde_json::to_vec_pretty(job)?)?;
        for part in [&parts.kernel, &parts.root, &parts.products] {
            if !part.exists() {
                bail!("{} is not there", part.display());
            }
        }
        // The guest's own names for the products: a build meanwhile changes nothing under it.
        let products = tempfile::tempdir_in("out").context("out/")?;
        link(&parts.products, products.path())?;
        let sockets = tempfile::tempdir()?;
        let gpu = Gpu::start(parts, &config.gpu, sockets.path(), &output)?;
        let control = UnixListener::bind(sockets.path().join("control"))?;
        let kvm = !config.icount && parts.accel == Accel::Auto && kvm_works(parts);
        let log = output.join("qemu.log");
        let mut command = qemu(&parts.qemu);
        command
            .args(arguments(
                parts,
                config,
                products.path(),
                &output,
                sockets.path(),
                &gpu.socket,
                kvm,
            ))
            .stderr(File::create(&log)?);
        if !config.interactive {
            command.stdin(Stdio::null()).stdout(Stdio::piped());
        }
        let mut qemu = command
            .spawn()
            .with_context(|| parts.qemu.display().to_string())?;
        match accept(&control, &mut qemu) {
            Ok(control) => Ok(Self {
                gpu,
                qemu,
                control,
                _directories: [products, sockets],
            }),
            Err(error) => {
                end(&mut qemu);
                let words = std::fs::read_to_string(&log).unwrap_or_default();
                Err::<Self, anyhow::Error>(error).context(format!("QEMU: {}", words.trim()))
            }
        }
    }

    /// The guest's console, once; `None` if it is the terminal or was taken.
    pub(crate) fn console(&mut self) -> Option<ChildStdout> {
        self.qemu.stdout.take()
    }

    /// The second serial port.
    ///
    /// # Errors
    ///
    /// If no more files can be opened.
    pub(crate) fn control(&self) -> Result<UnixStream> {
        Ok(self.control.try_clone()?)
    }

    /// Waits until the guest is off.
    ///
    /// # Errors
    ///
    /// If the process cannot be waited for.
    pub(crate) fn wait(&mut self) -> Result<()> {
        self.qemu.wait()?;
        Ok(())
    }

    /// Whether the guest is off.
    pub(crate) fn is_off(&mut self) -> bool {
        !matches!(self.qemu.try_wait(), Ok(None))
    }

    /// Turns it off at once.
    pub(crate) fn turn_off(&mut self) {
        end(&mut self.qemu);
    }

    /// Does what a test asks for ([`skua_guest::host`]). Returns the words behind `ok`.
    ///
    /// # Errors
    ///
    /// If the request is unknown or cannot be fulfilled.
    pub(crate) fn act(&mut self, request: &str) -> Result<String> {
        let (verb, argument) = request.split_once(' ').unwrap_or((request, ""));
        match verb {
            "ping" => {}
            "gpu-kill" => self.gpu.kill()?,
            "gpu-stop" => self.gpu.signal(Signal::SIGSTOP)?,
            "gpu-cont" => self.gpu.signal(Signal::SIGCONT)?,
            "gpu-pause" => {
                let time: u64 = argument.parse().context("milliseconds")?;
                self.gpu.pause(Duration::from_millis(time))?;
            }
            _ => bail!("no such request: {verb}"),
        }
        Ok(String::new())
    }

    /// After the guest is off: what is to be said against the GPU server, if anything.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        self.gpu.complaint()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        end(&mut self.qemu);
    }
}

/// Gives every file below `from` a second name below `to`.
fn link(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir(&to)?;
            link(&entry.path(), &to)?;
        } else {
            std::fs::hard_link(entry.path(), to)?;
        }
    }
    Ok(())
}

/// Claims a directory for this run: logs and reports of two would mix.
///
/// # Errors
///
/// If another run has it.
pub(crate) fn claim(output: &Path) -> Result<Flock<File>> {
    std::fs::create_dir_all(output).with_context(|| output.display().to_string())?;
    let lock = File::create(output.join(".lock"))?;
    Flock::lock(lock, FlockArg::LockExclusiveNonblock)
        .map_err(|_| anyhow::anyhow!("another run is writing to {}", output.display()))
}

/// Connects with a starting QEMU.
fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let since = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
        if let Some(status) = qemu.try_wait()? {
            bail!("ended at once ({status})");
        }
        if since.elapsed() > PATIENCE {
            bail!("does not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn end(child: &mut Child) {
    // It may be over already.
    let _ = child.kill();
    let _ = child.wait();
}

/// A command of the user's QEMU. A program of the host finds its libraries by the host's loader.
fn qemu(path: &Path) -> Command {
    let Ok(inside) = path.strip_prefix("/host") else {
        return Command::new(path);
    };
    let runs = |command: &mut Command| {
        command
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    let prefix = inside.ancestors().nth(2).unwrap_or(Path::new(""));
    let data = Path::new("/host").join(prefix).join("share/qemu");
    let mut command = if runs(&mut Command::new(path)) {
        Command::new(path)
    } else {
        let libraries: Vec<String> = ["lib/x86_64-linux-gnu", "usr/lib/x86_64-linux-gnu", "lib64"]
            .iter()
            .chain(&["usr/lib64", "usr/local/lib"])
            .map(|dir| format!("/host/{dir}"))
            .collect();
        let mut command = Command::new("/host/lib64/ld-linux-x86-64.so.2");
        command
            .arg("--library-path")
            .arg(libraries.join(":"))
            .arg(path);
        command
    };
    command.arg("-L").arg(data).args(["-L", "/usr/share/qemu"]);
    command.args(["-L", "/usr/share/seabios"]);
    command
}

fn arguments(
    parts: &Parts,
    config: &Config,
    products: &Path,
    output: &Path,
    sockets: &Path,
    gpu: &Path,
    kvm: bool,
) -> Vec<String> {
    let memory = if parts.patience > 1 {
        MEMORY * 2
    } else {
        MEMORY
    };
    let split = if config.iommu {
        ",kernel-irqchip=split"
    } else {
        ""
    };
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none"]);
    add(&["-no-reboot", "-m", &format!("{memory}M")]);
    add(&["-machine", &format!("q35,memory-backend=m{split}")]);
    // The GPU reaches the guest's memory through its descriptor.
    add(&["-object"]);
    add(&[&format!(
        "memory-backend-memfd,id=m,size={memory}M,share=on"
    )]);
    match (config.icount, kvm) {
        (true, _) => add(&["-accel", "tcg,thread=single", "-cpu", "max", "-smp", "1"]),
        (_, true) => add(&["-accel", "kvm", "-cpu", "host", "-smp", "2"]),
        (_, false) => add(&["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"]),
    }
    if config.icount {
        add(&["-icount", "shift=0,sleep=off"]);
    }
    if config.iommu {
        add(&["-device", "intel-iommu,caching-mode=on,intremap=on"]);
    }
    let device = json!({
        "driver": "vfio-user-pci",
        "socket": { "type": "unix", "path": gpu },
    });
    add(&["-device", &device.to_string()]);
    let shares = [
        ("root", parts.root.as_path(), ",readonly=on"),
        ("skua", products, ",readonly=on"),
        ("out", output, ""),
    ];
    for (tag, path, access) in shares {
        // A comma in a value is written twice.
        let path = path.display().to_string().replace(',', ",,");
        add(&["-fsdev"]);
        add(&[&format!(
            "local,id={tag},path={path},security_model=none,multidevs=remap{access}"
        )]);
        add(&["-device"]);
        add(&[&format!("virtio-9p-pci,fsdev={tag},mount_tag={tag}")]);
    }
    add(&["-chardev", "stdio,id=console,signal=off"]);
    add(&["-serial", "chardev:console"]);
    let path = sockets.join("control");
    add(&["-chardev"]);
    add(&[&format!("socket,id=control,path={}", path.display())]);
    add(&["-serial", "chardev:control"]);
    add(&["-kernel", &parts.kernel.display().to_string()]);
    add(&["-append", &cmdline(config, parts.patience)]);
    list
}

fn cmdline(config: &Config, patience: u32) -> String {
    let level = if config.interactive { 4 } else { 7 };
    let iommu = if config.iommu { "intel_iommu=on " } else { "" };
    let hung = if patience > 1 {
        format!("sysctl.kernel.hung_task_timeout_secs={} ", 60 * patience)
    } else {
        String::new()
    };
    let mount = format!(
        "busybox mount -t tmpfs -o mode=755 mnt /mnt && busybox mkdir {PRODUCTS} /mnt/out && \
         busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose skua {PRODUCTS} && \
         exec {PRODUCTS}/bin/skua-init"
    );
    // The kernel's words, then the first process and its arguments. no5lvl: while identify_cpu()
    // rewrites the CPU's capabilities, 7.3 takes a kernel of five levels for one of four, and KASAN
    // complains if just then an interrupt comes.
    format!(
        "console=ttyS0,115200 loglevel={level} panic=-1 oops=panic printk.devkmsg=on no5lvl \
         {hung}kunit.enable=1 kunit.autorun=1 \
         root=root rootfstype=9p \
         rootflags=trans=virtio,version=9p2000.L,msize=524288,cache=loose ro \
         {iommu}{} init=/usr/bin/busybox -- sh -c \"{mount}\"",
        config.cmdline
    )
}

/// Whether KVM runs an ordinary kernel here: the node may exist and open and yet not do that.
fn kvm_works(parts: &Parts) -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    if !flags
        .split_whitespace()
        .any(|word| word == "vmx" || word == "svm")
        || File::options()
            .read(true)
            .write(true)
            .open("/dev/kvm")
            .is_err()
    {
        return false;
    }
    // Without a root the kernel panics and, told to, reboots: it got that far.
    let probe = qemu(&parts.qemu)
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-machine", "q35", "-accel", "kvm", "-cpu"])
        .args(["host", "-m", "256M", "-serial", "stdio", "-append"])
        .arg("console=ttyS0 panic=-1")
        .arg("-kernel")
        .arg(&parts.kernel)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut probe) = probe else {
        return false;
    };
    let since = Instant::now();
    while since.elapsed() < PATIENCE {
        if matches!(probe.try_wait(), Ok(Some(_))) {
            let log = probe.wait_with_output().map(|output| output.stdout);
            return log.is_ok_and(|log| String::from_utf8_lossy(&log).contains("Linux version"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    end(&mut probe);
    false
}

/// The GPU server.
#[derive(Debug)]
struct Gpu {
    socket: PathBuf,
    log: PathBuf,
    child: Child,
    /// It was killed because a test asked for it.
    killed: bool,
}

impl Gpu {
    fn start(parts: &Parts, options: &[String], sockets: &Path, output: &Path) -> Result<Self> {
        let socket = sockets.join("gpu");
        let log = output.join("gpu.log");
        let file = File::create(&log)?;
        let child = Command::new(&parts.gpu)
            .arg("--socket")
            .arg(&socket)
            .args(options)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| parts.gpu.display().to_string())?;
        let mut gpu = Self {
            socket,
            log,
            child,
            killed: false,
        };
        let since = Instant::now();
        while !gpu.socket.exists() {
            let ended = gpu.child.try_wait()?;
            if ended.is_some() || since.elapsed() > PATIENCE {
                bail!("the GPU server does not start: {}", gpu.words());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(gpu)
    }

    fn signal(&mut self, signal: Signal) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("the GPU server is not running ({status})");
        }
        kill(self.pid()?, signal)?;
        Ok(())
    }

    fn pid(&self) -> Result<Pid> {
        Ok(Pid::from_raw(i32::try_from(self.child.id())?))
    }

    fn kill(&mut self) -> Result<()> {
        self.killed = true;
        self.signal(Signal::SIGKILL)?;
        self.child.wait()?;
        Ok(())
    }

    fn pause(&mut self, time: Duration) -> Result<()> {
        self.signal(Signal::SIGSTOP)?;
        let pid = self.pid()?;
        std::thread::spawn(move || {
            std::thread::sleep(time);
            // If it was killed meanwhile there is nothing to continue: the machine has not
            // waited for its last process yet, or the number is free.
            let _ = kill(pid, Signal::SIGCONT);
        });
        Ok(())
    }

    /// Lets it end with the guest; says so if it had ended badly by itself.
    fn complaint(&mut self) -> Option<String> {
        let since = Instant::now();
        // A stopped server would neither notice nor end.
        let _ = self.signal(Signal::SIGCONT);
        while since.elapsed() < Duration::from_secs(3) {
            match self.child.try_wait() {
                Ok(Some(_)) if self.killed => return None,
                Ok(Some(status)) if status.success() => break,
                Ok(Some(status)) => {
                    let end = status.signal().map_or_else(
                        || status.to_string(),
                        |signal| format!("killed by signal {signal}"),
                    );
                    return Some(format!("the GPU server ended: {end}\n{}", self.words()));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Some(format!("the GPU server: {error}")),
            }
        }
        end(&mut self.child);
        let words = self.words();
        words
            .contains("panicked at")
            .then(|| format!("a thread of the GPU server panicked\n{words}"))
    }

    /// The end of its log.
    fn words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(40)..].join("\n")
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            gpu: Vec::new(),
            cmdline: "skua.watchdog=1".into(),
            iommu: false,
            icount: false,
            interactive: false,
            output: PathBuf::from("/out"),
        }
    }

    #[test]
    fn the_first_process_is_the_last_on_the_command_line() {
        let line = cmdline(&config(), 1);
        let (kernel, process) = line.split_once(" -- ").expect("two parts");
        assert!(kernel.contains("skua.watchdog=1") && kernel.ends_with("init=/usr/bin/busybox"));
        assert!(process.starts_with("sh -c \"") && process.ends_with("skua-init\""));
        // x86's COMMAND_LINE_SIZE.
        assert!(line.len() < 2048);
    }

    #[test]
    fn an_iommu_is_asked_for_on_both_sides() {
        let config = Config {
            iommu: true,
            ..config()
        };
        assert!(cmdline(&config, 1).contains("intel_iommu=on"));
    }
}
