// SPDX-License-Identifier: MIT

//! The cache: what a set-up says and makes, what it says where it cannot, and what is pruned.

use skua_setup::{Checkout, End};

fn run(checkout: &Checkout, script: &str) -> End {
    checkout.run(script, &[]).expect("bash")
}

/// The one line of a command that failed.
fn refusal(checkout: &Checkout, script: &str) -> String {
    let end = run(checkout, script);
    assert!(!end.success, "{}", end.text);
    let lines: Vec<&str> = end.text.lines().collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines[0].to_owned()
}

/// A checkout whose cache has everything.
fn set_up() -> Checkout {
    let checkout = Checkout::new().expect("a checkout");
    let end = run(&checkout, "scripts/kernel release && scripts/kernel debug");
    assert!(end.success, "{}", end.text);
    checkout
}

/// The line of `make prune` about the entry whose name starts like this.
fn line<'a>(text: &'a str, name: &str) -> &'a str {
    text.lines()
        .find(|line| {
            line.split_whitespace()
                .nth(2)
                .is_some_and(|word| word.starts_with(name))
        })
        .unwrap_or_else(|| panic!("{name}: {text}"))
}

#[test]
fn a_set_up_says_once_what_it_does() {
    let checkout = Checkout::new().expect("a checkout");
    let end = run(&checkout, "scripts/kernel debug");
    assert!(end.success, "{}", end.text);
    let words: Vec<&str> = end
        .text
        .lines()
        .filter(|l| l.starts_with("skua: "))
        .collect();
    assert_eq!(
        words[0],
        "skua: set-up, once: fetch the tools, unpack the kernel source, build the debug kernel"
    );
    assert!(words[1].contains(" minutes and "), "{words:?}");
    assert!(
        words[1].contains(&*checkout.cache.to_string_lossy()),
        "{words:?}"
    );
    assert_eq!(words.len(), 2, "{words:?}");
    assert_eq!(checkout.entries().len(), 4, "{:?}", checkout.entries());
    assert_eq!(run(&checkout, "scripts/kernel debug").text, "");
    let end = run(&checkout, "scripts/kernel release");
    assert!(
        end.text
            .contains("set-up, once: build the release kernel\n"),
        "{}",
        end.text
    );
}

#[test]
fn an_unknown_kernel_is_one_line() {
    let checkout = Checkout::new().expect("a checkout");
    let words = refusal(&checkout, "scripts/kernel skua");
    assert!(words.contains("no such kernel: skua"), "{words}");
}

#[test]
fn a_switch_is_1_or_0() {
    let checkout = Checkout::new().expect("a checkout");
    for (name, target, word) in [
        ("TRACE", "run", "--trace"),
        ("EVICT", "test", "--evict"),
        ("HOST", "mutants", "skua-mutants host"),
    ] {
        let make = |value: &str| run(&checkout, &format!("make -n {target} {name}={value}"));
        assert!(make("1").text.contains(word), "{name}");
        assert!(!make("0").text.contains(word), "{name}");
        assert!(!make("yes").success, "{name}");
    }
    assert!(!run(&checkout, "make help QEMU=nowhere").success);
    // A shell's own.
    assert!(run(&checkout, "HOST=here make help").success);
}

#[test]
fn a_cache_that_cannot_be_written_to_is_one_line() {
    let mut checkout = Checkout::new().expect("a checkout");
    checkout.cache = checkout.tree().join("Makefile/cache");
    for script in [
        "scripts/sysroot",
        "scripts/kernel release",
        "scripts/sandbox true",
    ] {
        let words = refusal(&checkout, script);
        // A sandbox looks for the tools first.
        assert!(
            words.contains("cannot be written to") || words.contains("no sysroot"),
            "{words}"
        );
        assert!(
            script.ends_with("true") || words.contains("SKUA_CACHE"),
            "{words}"
        );
    }
    checkout.cache = checkout.tree().join("cache");
    let words = refusal(
        &checkout,
        "mkdir cache; exec unshare --map-root-user --mount sh -c '
            busybox mount -t tmpfs -o ro none cache && exec scripts/sysroot'",
    );
    assert!(words.contains("cannot be written to"), "{words}");
    // One that has everything.
    let words = refusal(
        &set_up(),
        "exec unshare --map-root-user --mount sh -c '
            busybox mount --bind $SKUA_CACHE $SKUA_CACHE &&
            busybox mount -o remount,bind,ro $SKUA_CACHE && exec scripts/sandbox true'",
    );
    assert!(words.contains("cannot be written to"), "{words}");
}

#[test]
fn a_full_cache_is_one_line() {
    let mut checkout = Checkout::new().expect("a checkout");
    checkout.cache = checkout.tree().join("cache");
    let small = |script: &str| {
        format!(
            "mkdir -p cache; export script='{script}'
            exec unshare --map-root-user --mount sh -c '
                busybox mount -t tmpfs -o size=1m none cache && exec bash -c \"$script\"'"
        )
    };
    let words = refusal(&checkout, &small("scripts/sysroot"));
    assert!(words.contains("lacks room: 1 MiB are free"), "{words}");
    assert!(
        words.contains("make prune") && words.contains("SKUA_CACHE"),
        "{words}"
    );
    // Room that others take while it goes on.
    let words = refusal(
        &checkout,
        &small(". scripts/cache.sh; step filling full dd if=/dev/zero of=cache/file"),
    );
    assert!(words.contains("filling: no room is left"), "{words}");
}

#[test]
fn pruning_removes_what_no_checkout_needs() {
    let empty = Checkout::new().expect("a checkout");
    assert_eq!(run(&empty, "mkdir $SKUA_CACHE; make prune").text, "");
    let checkout = set_up();
    let before = checkout.entries();
    let end = run(&checkout, "make prune");
    assert!(end.success, "{}", end.text);
    assert_eq!(checkout.entries(), before);
    assert_eq!(
        end.text.matches("this checkout needs it").count(),
        4,
        "{}",
        end.text
    );

    // Another configuration, then other packages.
    for (edit, kinds) in [
        (
            "echo CONFIG_X=y >>kernel/configs/debug.config",
            &["kernel-debug-"][..],
        ),
        (
            "echo more >>scripts/sysroot.packages",
            &["kernel-debug-", "kernel-release-", "linux-", "sysroot-"],
        ),
    ] {
        let before = checkout.entries();
        let end = run(
            &checkout,
            &format!("{edit}; scripts/kernel debug && make prune"),
        );
        assert!(end.success, "{}", end.text);
        for kind in kinds {
            let old = before
                .iter()
                .find(|name| name.starts_with(kind))
                .expect("there");
            let words = line(&end.text, old);
            assert!(
                words.contains(" removed ") && words.contains("(no checkout "),
                "{words}"
            );
            assert!(
                words.starts_with(|c: char| c == ' ' || c.is_ascii_digit()),
                "{words}"
            );
            assert!(!checkout.entries().contains(old), "{old}");
        }
        assert!(checkout
            .entries()
            .iter()
            .any(|name| name.starts_with("kernel-debug-")));
        assert!(checkout
            .entries()
            .iter()
            .any(|name| name.starts_with("sysroot-")));
    }
}

#[test]
fn pruning_spares_what_other_checkouts_need() {
    let checkout = set_up();
    let mut other = Checkout::new().expect("a checkout");
    other.cache.clone_from(&checkout.cache);
    let end = run(
        &other,
        "echo more >>scripts/sysroot.packages; scripts/sysroot",
    );
    assert!(end.success, "{}", end.text);

    let needs = format!("({} needs it)", other.tree().display());
    let end = run(&checkout, "make prune");
    assert_eq!(end.text.matches(&needs).count(), 2, "{}", end.text);
    assert_eq!(checkout.entries().len(), 7, "{:?}", checkout.entries());

    // Nobody knows of it, but it is at work.
    let prune = format!(
        "rm $SKUA_CACHE/.checkouts/*; {}/scripts/prune",
        checkout.tree().display()
    );
    let end = run(&other, &format!("STUB_RUNS='{prune}' scripts/sandbox true"));
    assert_eq!(end.text.matches("(in use)").count(), 2, "{}", end.text);
    assert_eq!(checkout.entries().len(), 7, "{:?}", checkout.entries());

    // It was there, and is gone.
    assert!(run(&other, "scripts/sysroot").success);
    drop(other);
    let end = run(&checkout, "make prune");
    assert_eq!(end.text.matches(" removed ").count(), 2, "{}", end.text);
    assert_eq!(checkout.entries().len(), 5, "{:?}", checkout.entries());
}

#[test]
fn pruning_spares_what_is_being_made() {
    let checkout = set_up();
    let prune = "mkdir -p $SKUA_CACHE/linux-1.tmp.2; exec {lock}>$SKUA_CACHE/.lock-linux-1;";
    let end = run(
        &checkout,
        &format!("{prune} flock $lock; scripts/prune {{lock}}>&-"),
    );
    assert!(
        line(&end.text, "linux-1.tmp.2").contains(" kept "),
        "{}",
        end.text
    );
    assert!(checkout.entries().contains(&"linux-1.tmp.2".to_owned()));
    // The lock of a set-up that was killed is free.
    let end = run(&checkout, &format!("{prune} scripts/prune"));
    assert!(
        line(&end.text, "linux-1.tmp.2").contains(" removed "),
        "{}",
        end.text
    );
    assert!(!checkout.entries().contains(&"linux-1.tmp.2".to_owned()));
}

#[test]
fn a_step_that_is_ended_leaves_nobody_behind() {
    let checkout = Checkout::new().expect("a checkout");
    let end = run(
        &checkout,
        "fetch() { echo begun; sleep 60 | cat; }
        (. scripts/cache.sh; exec {lock}>lock; flock $lock; step fetching fetch fetch) &
        until grep -qs begun out/log/fetch.log; do sleep 0.1; done
        kill $!; wait $!
        flock -w 10 lock echo free",
    );
    assert!(end.text.ends_with("free\n"), "{}", end.text);
}
