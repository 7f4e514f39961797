// SPDX-License-Identifier: MIT

//! Images from and to files.

use std::fs;
use std::path::Path;

use image::{DynamicImage, GrayImage, ImageBuffer, Luma, Rgb, Rgba, RgbaImage};
use skua_filter::picture::Picture;

fn in_directory(test: impl FnOnce(&Path)) {
    let directory = tempfile::tempdir().expect("a directory");
    test(directory.path());
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
        // By the image crate alone, so that a swap of channels on both ways is found.
        let path = directory.join("a.png");
        RgbaImage::from_pixel(2, 1, Rgba([1, 2, 3, 4]))
            .save(&path)
            .expect("it is written");
        let picture = Picture::load(&path).expect("it is read");
        assert_eq!(picture.pixels(), [0x0403_0201; 2]);
        assert_eq!((picture.width(), picture.height()), (2, 1));
    });
}

#[test]
fn other_depths_and_kinds_are_converted() {
    in_directory(|directory| {
        let path = directory.join("a.png");
        GrayImage::from_pixel(1, 1, Luma([7]))
            .save(&path)
            .expect("it is written");
        assert_eq!(
            Picture::load(&path).expect("it is read").pixels(),
            [0xff07_0707]
        );
        ImageBuffer::from_pixel(1, 1, Rgb([0xffffu16, 0x8080, 0]))
            .save(&path)
            .expect("it is written");
        assert_eq!(
            Picture::load(&path).expect("it is read").pixels(),
            [0xff00_80ff]
        );
    });
}

#[test]
fn a_jpeg_is_told_from_its_content() {
    in_directory(|directory| {
        // The name lies.
        let path = directory.join("photo.png");
        let image = ImageBuffer::from_pixel(33, 17, Rgb([200u8, 100, 50]));
        DynamicImage::ImageRgb8(image)
            .save_with_format(&path, image::ImageFormat::Jpeg)
            .expect("it is written");
        let picture = Picture::load(&path).expect("it is read");
        assert_eq!((picture.width(), picture.height()), (33, 17));
        for (got, wanted) in picture.pixels()[40]
            .to_le_bytes()
            .into_iter()
            .zip([200, 100, 50, 255])
        {
            assert!(got.abs_diff(wanted) <= 4, "{got} is not near {wanted}");
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
