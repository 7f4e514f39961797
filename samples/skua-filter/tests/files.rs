// SPDX-License-Identifier: MIT

//! Images from and to files.

use std::fs;
use std::path::Path;

use png::{BitDepth, ColorType};
use skua_filter::picture::Picture;

fn in_directory(test: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().expect("a directory");
    test(directory.path());
}

/// Writes an image of one row, by the png crate alone: what our own code swaps on both ways
/// would not be found.
fn write_png(path: &Path, width: u32, color: ColorType, depth: BitDepth, bytes: &[u8]) {
    let mut encoder = png::Encoder::new(fs::File::create(path).expect("a file"), width, 1);
    encoder.set_color(color);
    encoder.set_depth(depth);
    let mut writer = encoder.write_header().expect("it is written");
    writer.write_image_data(bytes).expect("it is written");
}

#[test]
fn a_png_comes_back_with_its_alpha() {
    in_directory(|directory| {
        let path = directory.join("a.png");
        for (width, height) in [(1, 1), (3, 2), (257, 129)] {
            let pixels = (0..width * height).map(|i: u32| i.wrapping_mul(0x9e37_79b9));
            let picture = Picture::new(width, height, pixels.collect()).expect("pixels");
            picture.save(&path).expect("it is written");
            assert_eq!(Picture::load(&path).expect("it is read"), picture);
        }
    });
}

#[test]
fn pixels_are_red_green_blue_alpha() {
    in_directory(|directory| {
        let path = directory.join("a.png");
        let pixels = [1, 2, 3, 4, 1, 2, 3, 4];
        write_png(&path, 2, ColorType::Rgba, BitDepth::Eight, &pixels);
        let picture = Picture::load(&path).expect("it is read");
        assert_eq!(picture.pixels(), [0x0403_0201; 2]);
        assert_eq!((picture.width(), picture.height()), (2, 1));
    });
}

#[test]
fn other_depths_and_kinds_are_converted() {
    in_directory(|directory| {
        let path = directory.join("a.png");
        for (color, depth, bytes, pixel) in [
            (ColorType::Grayscale, BitDepth::Eight, &[7][..], 0xff07_0707),
            (ColorType::Grayscale, BitDepth::One, &[0x80], 0xffff_ffff),
            (
                ColorType::GrayscaleAlpha,
                BitDepth::Eight,
                &[7, 9],
                0x0907_0707,
            ),
            (ColorType::Rgb, BitDepth::Eight, &[1, 2, 3], 0xff03_0201),
            (
                ColorType::Rgb,
                BitDepth::Sixteen,
                &[255, 255, 128, 128, 0, 0],
                0xff00_80ff,
            ),
        ] {
            write_png(&path, 1, color, depth, bytes);
            let picture = Picture::load(&path).expect("it is read");
            assert_eq!(picture.pixels(), [pixel], "{color:?} {depth:?}");
        }
    });
}

#[test]
fn a_jpeg_is_told_from_its_content() {
    in_directory(|directory| {
        for (file, color) in [
            (&include_bytes!("color.jpg")[..], [200, 100, 50, 255]),
            (include_bytes!("grey.jpg"), [77, 77, 77, 255]),
        ] {
            // The name lies.
            let path = directory.join("photo.png");
            fs::write(&path, file).expect("it is written");
            let picture = Picture::load(&path).expect("it is read");
            assert_eq!((picture.width(), picture.height()), (33, 17));
            let pixel = picture.pixels()[40].to_le_bytes();
            for (got, wanted) in pixel.into_iter().zip(color) {
                assert!(got.abs_diff(wanted) <= 4, "{got} is not near {wanted}");
            }
        }
    });
}

#[test]
fn what_is_no_image_is_refused() {
    in_directory(|directory| {
        let path = directory.join("a.png");
        let load = || {
            Picture::load(&path)
                .expect_err("it is no image")
                .to_string()
        };
        assert!(load().contains("cannot read"), "{}", load());
        for bytes in [&b""[..], b"GIF89a\x01\x00\x01\x00", b"hello"] {
            fs::write(&path, bytes).expect("it is written");
            assert!(load().contains("neither a PNG nor a JPEG"), "{}", load());
        }
        // A JPEG that ends after its headers.
        fs::write(&path, &include_bytes!("color.jpg")[..200]).expect("it is written");
        assert!(load().contains("cannot read"), "{}", load());
        // Cut short, before all pixels are there.
        let pixels = (0..64 * 64).map(|i: u32| i.wrapping_mul(0x9e37_79b9).rotate_left(i % 31));
        let picture = Picture::new(64, 64, pixels.collect()).expect("pixels");
        picture.save(&path).expect("it is written");
        let bytes = fs::read(&path).expect("it is read");
        for length in (0..bytes.len() / 2).step_by(97) {
            fs::write(&path, &bytes[..length]).expect("it is written");
            load();
        }
    });
}
