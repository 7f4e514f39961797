// SPDX-License-Identifier: MIT

//! One virtual machine: the GPU server, QEMU, and what a test may do to them from outside.
//!
//! Nothing outlives a [`Machine`]: dropping it kills both processes. If `skua-vm` itself is
//! killed, the sandbox's PID namespace ends with it.

use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{bail, Context, Result};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::Signal;
use serde_json::json;
use skua_guest::clock::{self, Clock};
use skua_guest::job::{Job, FILE, PRODUCTS};
use skua_guest::process::{run, Process, Time};
use tempfile::TempDir;

use crate::gdb::{self, Gdb};
use crate::Parts;

/// How long a process may take to start, of its own time.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long QEMU waits for the GPU server's answer, in milliseconds. It gives the device up for
/// good after that; a server that is being debugged, or that a loaded host lets wait, answers
/// within the hour.
const MESSAGE_TIMEOUT: u32 = 3_600_000;

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Accel {
    /// QEMU's translator: everywhere.
    Tcg,
    /// KVM if it really works, else TCG.
    Auto,
}

/// What a machine is like, beyond its [`Parts`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    /// More options of the GPU server.
    pub(crate) gpu: Vec<String>,
    /// There is a second GPU like the first.
    pub(crate) second_gpu: bool,
    /// More words of the kernel command line.
    pub(crate) cmdline: String,
    /// More properties of QEMU's machine, or none.
    pub(crate) machine: String,
    /// Put an IOMMU before the GPU.
    pub(crate) iommu: bool,
    /// KUnit's suites run when the module is loaded.
    pub(crate) kunit: bool,
    /// Count instructions: one CPU whose nanoseconds are instructions.
    pub(crate) icount: bool,
    /// The console is the user's terminal.
    pub(crate) interactive: bool,
    /// [`crate::plan::Guest::may_die_of`].
    pub(crate) may_die_of: Option<String>,
    /// The guest's output share: job and logs go here too.
    pub(crate) output: PathBuf,
}

/// The CPU that QEMU's translator plays: all that it can, but for the string instructions that are
/// fast on real ones. The translator does them a byte at a time, and guests that believe the flags
/// copy and clear with nothing else: a fork takes 1.6 times as long with them, a copy 2.5 times.
const TCG_CPU: &str = "max,-erms,-fsrm,-fsrs,-fsrc,-fzrm";

/// Where, among the sockets, QEMU is told what to do while it runs.
const QMP: &str = "qmp";

/// The memory of a guest, in MiB: a debug kernel takes a quarter for itself. The driver gives half
/// of what there is where its parameters do not say less, and tests that use that up take as long.
pub(crate) fn memory(patience: u32) -> u32 {
    if patience > 1 {
        1280
    } else {
        1024
    }
}

/// QEMU and the GPU servers that it is connected to.
#[derive(Debug)]
pub(crate) struct Machine {
    /// What `qemu` is connected to: the GPU that tests ask something of.
    gpu: Gpu,
    /// Another one, if there are two.
    second_gpu: Option<Gpu>,
    /// The emulator, killed when this is dropped.
    qemu: Process,
    /// QEMU was killed from here.
    turned_off: bool,
    /// How often the guest was woken, if it wants to be.
    woken: Option<Arc<AtomicU32>>,
    /// The file that has what QEMU said.
    log: PathBuf,
    /// The guest's second serial port, by which host and guest talk.
    control: UnixStream,
    /// The directory of all sockets, removed when QEMU is gone.
    sockets: TempDir,
}

impl Machine {
    /// Starts the GPU servers and QEMU with a job for the guest.
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
        // What an earlier guest was kept waiting for is not this one's.
        std::fs::write(output.join(clock::FILE), "0")?;
        let sockets = tempfile::tempdir()?;
        let start = |name| Gpu::start(parts, &config.gpu, sockets.path(), &output, name);
        let gpu = start("gpu")?;
        let second_gpu = config.second_gpu.then(|| start("gpu-2")).transpose()?;
        let gpus = [&gpu].into_iter().chain(&second_gpu);
        let gpus: Vec<&Path> = gpus.map(|gpu| gpu.socket.as_path()).collect();
        let control = UnixListener::bind(sockets.path().join("control"))?;
        let kvm = !config.icount && parts.accel == Accel::Auto && kvm_works(parts);
        let log = output.join("qemu.log");
        let mut command = qemu(&parts.qemu);
        command
            .args(arguments(
                parts,
                config,
                &output,
                sockets.path(),
                &gpus,
                kvm,
            ))
            .stderr(File::create(&log)?);
        let started = if config.interactive {
            Process::start_in_foreground(&mut command)
        } else {
            Process::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))
        };
        let mut qemu = started.with_context(|| parts.qemu.display().to_string())?;
        let control =
            accept(&control, &mut qemu).with_context(|| format!("QEMU: {}", words(&log)))?;
        Ok(Self {
            gpu,
            second_gpu,
            qemu,
            turned_off: false,
            woken: None,
            log,
            control,
            sockets,
        })
    }

    /// The guest's console, once; `None` if it is the terminal or was taken.
    pub(crate) fn console(&mut self) -> Option<ChildStdout> {
        self.qemu.stdout()
    }

    /// The second serial port.
    ///
    /// # Errors
    ///
    /// If no more files can be opened.
    pub(crate) fn control(&self) -> Result<UnixStream> {
        Ok(self.control.try_clone()?)
    }

    /// Whether the guest is off.
    pub(crate) fn is_off(&mut self) -> bool {
        !matches!(self.qemu.try_wait(), Ok(None))
    }

    /// Turns it off at once.
    pub(crate) fn turn_off(&mut self) {
        self.turned_off = true;
        self.qemu.end();
    }

    /// A clock of the time that the host gave both processes.
    pub(crate) fn clock(&self) -> Clock {
        let gpus = [&self.gpu].into_iter().chain(&self.second_gpu);
        let processes = [&self.qemu].into_iter().chain(gpus.map(|gpu| &gpu.process));
        Clock::of_processes(&processes.map(Process::id).collect::<Vec<_>>())
    }

    /// Whether somebody other than the guest holds one of the processes: a test that had the
    /// server paused for some time, or a debugger.
    pub(crate) fn is_held(&self) -> bool {
        self.gpu.paused.is_some_and(|until| Instant::now() < until)
            || [&self.qemu, &self.gpu.process]
                .iter()
                .any(|process| is_traced(process.id()))
    }

    /// After the guest is off: what is to be said about QEMU's own end, if anything.
    pub(crate) fn end(&mut self) -> Option<String> {
        if self.turned_off {
            return None;
        }
        let mut clock = Clock::of_processes(&[self.qemu.id()]);
        let status = loop {
            match self.qemu.try_wait().ok()? {
                Some(status) => break status,
                None if clock.elapsed() > PATIENCE => {
                    self.turn_off();
                    return Some("QEMU has closed its console and does not end".to_owned());
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        if status.success() {
            return None;
        }
        let how = match status.signal().map(Signal::try_from) {
            Some(Ok(signal)) => format!("was killed by {signal}"),
            _ => format!("ended with {status}"),
        };
        Some(format!("QEMU {how}: {}", words(&self.log)))
    }

    /// Answers a request of a test ([`skua_guest::host`]).
    pub(crate) fn answer(&mut self, request: &str) -> String {
        match self.act(request) {
            Ok(answer) => format!("ok {answer}").trim_end().to_owned(),
            Err(error) => format!("error {error:#}").replace('\n', " "),
        }
    }

    fn act(&mut self, request: &str) -> Result<String> {
        let (verb, argument) = request.split_once(' ').unwrap_or((request, ""));
        match verb {
            "ping" => {}
            "gpu-kill" => {
                // Without a message under way, whose loss QEMU 11.1 answers with an assertion.
                let mut guest = Qmp::connect(&self.sockets.path().join(QMP))?;
                guest.execute("stop")?;
                self.gpu.kill()?;
                guest.execute("cont")?;
            }
            "gpu-stop" => self.gpu.process.signal(Signal::SIGSTOP)?,
            "gpu-cont" => self.gpu.process.signal(Signal::SIGCONT)?,
            "gpu-lie" => return self.gpu.ask(&format!("lie {argument}")),
            "gpu-steps" => return self.gpu.ask(&format!("steps {argument}")),
            "gpu-told" => return self.gpu.ask("told"),
            "gpu-gart" => return self.gpu.ask(&format!("gart {argument}")),
            "gpu-pause" => {
                let time = Duration::from_millis(argument.parse().context("milliseconds")?);
                self.gpu.process.pause(time)?;
                self.gpu.paused = Some(Instant::now() + time);
            }
            "wake" => {
                let woken = match self.woken.take() {
                    Some(woken) => woken,
                    None => wake(&self.sockets.path().join(QMP))?,
                };
                let count = self.woken.insert(woken).load(Ordering::Acquire);
                return Ok(count.to_string());
            }
            _ => bail!("no such request: {verb}"),
        }
        Ok(String::new())
    }

    /// After the guest is off: what is to be said against a GPU server, if anything.
    pub(crate) fn complaint(&mut self) -> Option<String> {
        let second_gpu = self.second_gpu.as_mut().and_then(Gpu::complaint);
        self.gpu.complaint().or(second_gpu)
    }
}

/// Has the guest woken whenever it sleeps, until QEMU ends; how often it was.
fn wake(qmp: &Path) -> Result<Arc<AtomicU32>> {
    let mut guest = Qmp::connect(qmp)?;
    guest.0.get_ref().set_read_timeout(None)?;
    let woken = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&woken);
    std::thread::spawn(move || {
        while guest.wait_for("SUSPEND").is_ok() {
            // It may ask as soon as it is awake.
            count.fetch_add(1, Ordering::Release);
            if guest.execute("system_wakeup").is_err() {
                break;
            }
        }
    });
    Ok(woken)
}

/// What QEMU is told while it runs, by its machine protocol.
struct Qmp(BufReader<UnixStream>);

impl Qmp {
    fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut qmp = Self(BufReader::new(stream));
        qmp.execute("qmp_capabilities")?;
        Ok(qmp)
    }

    /// Has a command without arguments executed.
    fn execute(&mut self, command: &str) -> Result<()> {
        writeln!(self.0.get_mut(), "{}", json!({ "execute": command }))?;
        loop {
            // There are a greeting and events, too.
            let answer = self.next()?;
            if answer.get("return").is_some() {
                return Ok(());
            }
            if let Some(error) = answer.get("error") {
                bail!("QEMU: {command}: {error}");
            }
        }
    }

    fn wait_for(&mut self, event: &str) -> Result<()> {
        while self.next()?["event"] != event {}
        Ok(())
    }

    fn next(&mut self) -> Result<serde_json::Value> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            bail!("QEMU is gone");
        }
        Ok(serde_json::from_str(&line)?)
    }
}

/// Whether a debugger has stopped a process.
fn is_traced(id: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // The state follows the name, which may have any character but the last bracket.
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| rest.starts_with('t'))
}

/// The end of a log.
fn words(log: &Path) -> String {
    let log = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Gives every file below `from` a second name below `to`.
///
/// # Errors
///
/// If a file cannot be had there.
pub(crate) fn link(from: &Path, to: &Path) -> Result<()> {
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

/// A directory of this run's own below `out`: for hard links, which go no further. Removed when
/// dropped, and by a later build (`scripts/build`) if this process is killed.
pub(crate) struct Own {
    dir: TempDir,
    /// Somebody uses it.
    _claim: Flock<File>,
}

impl Own {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// If that cannot be done in `out`.
    pub(crate) fn new(out: &Path) -> Result<Self> {
        let dir = tempfile::tempdir_in(out).with_context(|| out.display().to_string())?;
        let _claim = claim(dir.path())?;
        Ok(Self { dir, _claim })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Connects with a starting QEMU.
fn accept(listener: &UnixListener, qemu: &mut Process) -> Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let mut clock = Clock::of_processes(&[qemu.id()]);
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
        if clock.elapsed() > PATIENCE {
            bail!("does not start");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
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
    output: &Path,
    sockets: &Path,
    gpus: &[&Path],
    kvm: bool,
) -> Vec<String> {
    let memory = memory(parts.patience);
    let split = if config.iommu {
        ",kernel-irqchip=split"
    } else {
        ""
    };
    let more = match config.machine.as_str() {
        "" => String::new(),
        properties => format!(",{properties}"),
    };
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
    add(&["-nodefaults", "-no-user-config", "-display", "none"]);
    add(&["-no-reboot", "-m", &format!("{memory}M")]);
    add(&["-machine", &format!("q35,memory-backend=m{split}{more}")]);
    // The GPU reaches the guest's memory through its descriptor.
    add(&["-object"]);
    add(&[&format!(
        "memory-backend-memfd,id=m,size={memory}M,share=on"
    )]);
    match (config.icount, kvm) {
        (true, _) => add(&["-accel", "tcg,thread=single", "-cpu", TCG_CPU, "-smp", "1"]),
        (_, true) => add(&["-accel", "kvm", "-cpu", "host", "-smp", "2"]),
        (_, false) => add(&["-accel", "tcg,thread=multi", "-cpu", TCG_CPU, "-smp", "2"]),
    }
    if config.icount {
        add(&["-icount", "shift=0,sleep=off"]);
    }
    if config.iommu {
        add(&["-device", "intel-iommu,caching-mode=on,intremap=on"]);
    }
    for gpu in gpus {
        let device = json!({
            "driver": "vfio-user-pci",
            "socket": { "type": "unix", "path": gpu },
            "x-msg-timeout": MESSAGE_TIMEOUT,
        });
        add(&["-device", &device.to_string()]);
    }
    let shares = [
        ("root", parts.root.as_path(), ",readonly=on"),
        ("skua", parts.products.as_path(), ",readonly=on"),
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
    let path = sockets.join(QMP);
    add(&["-chardev"]);
    add(&[&format!(
        "socket,id=qmp,path={},server=on,wait=off",
        path.display()
    )]);
    add(&["-mon", "chardev=qmp,mode=control"]);
    if let Some(gdb) = parts.gdb {
        // A path that a GDB in another sandbox sees too.
        let socket = std::env::current_dir()
            .unwrap_or_default()
            .join(gdb::SOCKET);
        add(&["-chardev"]);
        add(&[&format!(
            "socket,id=gdb,path={},server=on,wait=off",
            socket.display()
        )]);
        add(&["-gdb", "chardev:gdb"]);
        if gdb == Gdb::Wait {
            add(&["-S"]);
        }
    }
    add(&["-kernel", &parts.kernel.display().to_string()]);
    add(&["-append", &cmdline(config, parts.patience)]);
    list
}

fn cmdline(config: &Config, patience: u32) -> String {
    let level = if config.interactive { 4 } else { 7 };
    let iommu = if config.iommu { "intel_iommu=on " } else { "" };
    let kunit = u8::from(config.kunit);
    let hung = if patience > 1 {
        format!("sysctl.kernel.hung_task_timeout_secs={} ", 60 * patience)
    } else {
        String::new()
    };
    let mount = format!(
        "busybox mount -t tmpfs -o mode=755 mnt /mnt && busybox mkdir {PRODUCTS} /mnt/out && \
         busybox mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose \
         skua {PRODUCTS} && \
         exec {PRODUCTS}/bin/skua-init"
    );
    // The kernel's words, then the first process and its arguments. no5lvl: while identify_cpu()
    // rewrites the CPU's capabilities, 7.3 takes a kernel of five levels for one of four, and KASAN
    // complains if just then an interrupt comes. no_timer_check: on a loaded host the timer's first
    // interrupts come too late for 7.3, which then panics. tsc=nowatchdog: on a loaded host 7.3's
    // watchdog_check_skew() waits for another CPU, which waits in stop_machine() for this one, for
    // as long as the clock is jiffies, which then stand. nokaslr: for GDB, and for a user's kernel.
    format!(
        "console=ttyS0,115200 loglevel={level} panic=-1 oops=panic printk.devkmsg=on no5lvl \
         no_timer_check tsc=nowatchdog nokaslr \
         {hung}kunit.enable={kunit} \
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
    let mut probe = qemu(&parts.qemu);
    probe
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-machine", "q35", "-accel", "kvm", "-cpu"])
        .args(["host", "-m", "256M", "-serial", "stdio", "-append"])
        .arg("console=ttyS0 panic=-1")
        .arg("-kernel")
        .arg(&parts.kernel);
    let mut booted = false;
    let limit = Some((PATIENCE, Time::OfProcess));
    let end = run(probe, limit, |line| {
        booted |= line.contains("Linux version")
    });
    booted && end.is_ok_and(|end| end.limit.is_none())
}

/// The process that is the GPU.
#[derive(Debug)]
struct Gpu {
    /// The socket to which QEMU connects, vfio-user.
    socket: PathBuf,
    /// Where other lies can be asked for.
    control: PathBuf,
    /// The file that has what the server said.
    log: PathBuf,
    /// The server, killed when this is dropped.
    process: Process,
    /// It was killed because a test asked for it.
    killed: bool,
    /// It stands still until then because a test asked for it.
    paused: Option<Instant>,
}

impl Gpu {
    fn start(
        parts: &Parts,
        options: &[String],
        sockets: &Path,
        output: &Path,
        name: &str,
    ) -> Result<Self> {
        let socket = sockets.join(name);
        let control = sockets.join(format!("{name}-control"));
        let log = output.join(format!("{name}.log"));
        let file = File::create(&log)?;
        let mut command = Command::new(&parts.gpu);
        command
            .arg("--socket")
            .arg(&socket)
            .arg("--control")
            .arg(&control)
            .args(options)
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file);
        let process =
            Process::start(&mut command).with_context(|| parts.gpu.display().to_string())?;
        let mut gpu = Self {
            socket,
            control,
            log,
            process,
            killed: false,
            paused: None,
        };
        let mut clock = Clock::of_processes(&[gpu.process.id()]);
        while !gpu.socket.exists() {
            if gpu.process.try_wait()?.is_some() || clock.elapsed() > PATIENCE {
                bail!("the GPU server does not start: {}", words(&gpu.log));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(gpu)
    }

    fn kill(&mut self) -> Result<()> {
        self.killed = true;
        self.process.signal(Signal::SIGKILL)?;
        self.process.wait()?;
        Ok(())
    }

    /// Asks it through its control socket; what follows `ok`.
    fn ask(&self, request: &str) -> Result<String> {
        let mut stream = UnixStream::connect(&self.control)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        writeln!(stream, "{request}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        match answer.trim().strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().to_owned()),
            None => bail!("the GPU server: {}", answer.trim()),
        }
    }

    /// Lets it end with the guest; says so if it had ended badly by itself.
    fn complaint(&mut self) -> Option<String> {
        let since = Instant::now();
        // A stopped server would neither notice nor end.
        let _ = self.process.signal(Signal::SIGCONT);
        while since.elapsed() < Duration::from_secs(3) {
            match self.process.try_wait() {
                Ok(Some(_)) if self.killed => return None,
                Ok(Some(status)) if status.success() => break,
                Ok(Some(status)) => {
                    let end = status.signal().map_or_else(
                        || status.to_string(),
                        |signal| format!("killed by signal {signal}"),
                    );
                    return Some(format!("the GPU server ended: {end}\n{}", words(&self.log)));
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Some(format!("the GPU server: {error}")),
            }
        }
        self.process.end();
        let words = words(&self.log);
        words
            .contains("panicked at")
            .then(|| format!("a thread of the GPU server panicked\n{words}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        Config {
            cmdline: "skua.watchdog=1".into(),
            output: PathBuf::from("/out"),
            ..Config::default()
        }
    }

    fn command_line(parts: &Parts) -> String {
        let path = Path::new("/x");
        arguments(parts, &config(), path, path, &[path; 2], false).join(" ")
    }

    #[test]
    fn a_server_may_stand_still_for_minutes() {
        let line = command_line(&Parts::of_test());
        assert!(line.contains("\"x-msg-timeout\":3600000"), "{line}");
    }

    #[test]
    fn each_server_is_a_device() {
        let line = command_line(&Parts::of_test());
        assert_eq!(line.matches("vfio-user-pci").count(), 2, "{line}");
    }

    #[test]
    fn a_debugger_is_let_in_where_one_is_asked_for() {
        let mut parts = Parts::of_test();
        assert!(!command_line(&parts).contains("-gdb"));
        parts.gdb = Some(Gdb::On);
        let line = command_line(&parts);
        assert!(line.contains("-gdb chardev:gdb") && line.contains("nokaslr"));
        assert!(!line.contains(" -S"));
        parts.gdb = Some(Gdb::Wait);
        assert!(command_line(&parts).contains(" -S"));
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
