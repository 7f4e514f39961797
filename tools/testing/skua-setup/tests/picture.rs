// SPDX-License-Identifier: MIT

//! `make run` refuses what it cannot do before it sets anything up, and takes any file name.

use std::fs;

use skua_filter::filter::Filter;
use skua_filter::weights::MAX_RADIUS;
use skua_setup::Checkout;

/// The first bytes of a PNG file.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n----";

#[test]
fn bad_options_are_refused_before_anything_is_set_up() {
    let checkout = Checkout::new().expect("a checkout");
    for (option, why) in [
        ("IMAGE=nowhere.png", "there is no such file"),
        ("IMAGE=it's \"nowhere\".png", "there is no such file"),
        ("IMAGE=-nowhere.png", "there is no such file"),
        ("IMAGE=scripts", "not a file that can be read"),
        ("IMAGE=Makefile", "neither a PNG nor a JPEG file"),
        ("FILTER=nope", "the filters are "),
        ("FILTER=edge blur", "the filters are "),
        ("FILTER=it's", "the filters are "),
        ("RADIUS=many", "from 0 to "),
        ("RADIUS=-1", "from 0 to "),
        ("RADIUS=1.5", "from 0 to "),
        ("RADIUS=99999999999999999999", "from 0 to "),
        (&format!("RADIUS={}", MAX_RADIUS + 1), "from 0 to "),
        ("VRAM=little", "a power of two from 2M"),
        ("VRAM=0M", "a power of two from 2M"),
        ("VRAM=1M", "a power of two from 2M"),
        ("VRAM=12M", "a power of two from 2M"),
        ("VRAM=4096K", "a power of two from 2M"),
        ("VRAM=99999999999999999999M", "a power of two from 2M"),
        ("VRAM=2048G", " to 1024G"),
    ] {
        let end = checkout.run("make run \"$1\"", &[option]).expect("bash");
        assert!(!end.success, "{option}");
        let ours: Vec<&str> = end
            .text
            .lines()
            .filter(|l| !l.starts_with("make"))
            .collect();
        assert_eq!(ours.len(), 1, "{option}: {ours:?}");
        assert!(
            ours[0].starts_with("skua: ") && ours[0].contains(why),
            "{option}: {ours:?}"
        );
        assert!(!checkout.cache.exists(), "{option}");
        assert!(!checkout.tree().join("out").exists(), "{option}");
    }
}

#[test]
fn what_is_checked_is_what_the_image_program_takes() {
    let checkout = Checkout::new().expect("a checkout");
    let end = checkout.run("FILTER=? scripts/picture", &[]).expect("bash");
    let names: Vec<&str> = Filter::ALL.iter().map(|filter| filter.name()).collect();
    assert_eq!(
        end.text.trim(),
        format!("skua: FILTER=?: the filters are {}", names.join(", "))
    );
    for name in names {
        let end = checkout
            .run("FILTER=$1 scripts/picture", &[name])
            .expect("bash");
        assert!(end.success, "{}", end.text);
    }
    for radius in ["0", "008", &MAX_RADIUS.to_string()] {
        let end = checkout
            .run("RADIUS=$1 scripts/picture", &[radius])
            .expect("bash");
        assert!(end.success, "{}", end.text);
    }
    for vram in ["2M", "016M", "1G", "1024G"] {
        let end = checkout
            .run("VRAM=$1 scripts/picture", &[vram])
            .expect("bash");
        assert!(end.success, "{}", end.text);
    }
}

#[test]
fn any_file_name_is_an_image() {
    let checkout = Checkout::new().expect("a checkout");
    let tree = checkout.tree();
    // The runner and its arguments, of a run whose kernel and programs are there.
    for script in ["kernel", "build"] {
        fs::write(tree.join("scripts").join(script), "#!/bin/sh\n").expect("a stub");
    }
    fs::write(
        tree.join("scripts/sandbox"),
        "#!/bin/sh\nprintf '%s\\n' \"$@\" >arguments\n",
    )
    .expect("a stub");
    fs::create_dir_all(tree.join("out/kernel")).expect("a directory");
    fs::write(tree.join("out/kernel/release.env"), "BUILD=/srv/build\n").expect("a file");
    for name in [
        "it's.png",
        "a b  c.png",
        "-n",
        "--name",
        "$(HOME)$HOME`id`.png",
        "\"quoted\";true.jpg",
        "ä\\n.png",
        "#1.png",
    ] {
        fs::write(tree.join(name), [PNG, name.as_bytes()].concat()).expect("an image");
        let end = checkout
            .run("make run IMAGE=\"$1\" FILTER=blur RADIUS=8", &[name])
            .expect("bash");
        assert!(end.success, "{name}: {}", end.text);
        let image = fs::read(tree.join("out/run/log/image")).expect("the image");
        assert!(image.ends_with(name.as_bytes()), "{name}");
        let arguments = fs::read_to_string(tree.join("arguments")).expect("arguments");
        assert!(
            arguments
                .lines()
                .any(|line| line == format!("--name={name}")),
            "{name}: {arguments}"
        );
        assert!(
            arguments.ends_with("--filter\nblur\n--radius\n8\n"),
            "{arguments}"
        );
    }
}
