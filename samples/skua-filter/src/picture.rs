// SPDX-License-Identifier: MIT

//! An image in memory, and the files that images come from and go to.
//!
//! A pixel is a 32-bit word: red in bits 7:0, green in 15:8, blue in 23:16, alpha in 31:24, not
//! premultiplied. Little endian, these are the bytes R, G, B, A. Rows follow one another without a
//! gap.

use std::fmt;
use std::fs;
use std::io::{BufWriter, Cursor};
use std::path::{Path, PathBuf};

use png::{ColorType, Limits, Transformations};
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// An image of at least one pixel.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    width: u32,
    /// Rows.
    height: u32,
    /// Row by row; red in bits 7:0, then green, blue and alpha.
    pixels: Vec<u32>,
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({}x{})", self.width, self.height)
    }
}

impl Picture {
    /// An image of `pixels`, row by row from the top; `None` unless there are `width * height` of
    /// them, and at least one.
    pub fn new(width: u32, height: u32, pixels: Vec<u32>) -> Option<Self> {
        let count = u64::from(width) * u64::from(height);
        (count > 0 && u64::try_from(pixels.len()) == Ok(count)).then_some(Self {
            width,
            height,
            pixels,
        })
    }

    /// Columns.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Rows.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// All pixels, row by row from the top.
    pub fn pixels(&self) -> &[u32] {
        &self.pixels
    }

    /// The pixel at a position, or the nearest one where the position is outside.
    pub fn nearest(&self, x: i64, y: i64) -> u32 {
        let x = x.clamp(0, i64::from(self.width) - 1);
        let y = y.clamp(0, i64::from(self.height) - 1);
        // The position is inside, so the index is in memory.
        usize::try_from(y * i64::from(self.width) + x)
            .ok()
            .and_then(|i| self.pixels.get(i).copied())
            .unwrap_or(0)
    }

    /// The pixels as bytes R, G, B, A.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.pixels.iter().flat_map(|p| p.to_le_bytes()).collect()
    }

    /// The image in bytes R, G, B, A; `None` as for [`Picture::new`].
    pub fn from_bytes(width: u32, height: u32, bytes: &[u8]) -> Option<Self> {
        let chunks = bytes.chunks_exact(4);
        if !chunks.remainder().is_empty() {
            return None;
        }
        let word = |c: &[u8]| c.iter().rev().fold(0, |w, b| (w << 8) | u32::from(*b));
        Self::new(width, height, chunks.map(word).collect())
    }

    /// Reads a PNG or JPEG file. The kind is told from the content. Depths other than 8 bits are
    /// converted, grey becomes three equal channels, and images without alpha are opaque.
    ///
    /// # Errors
    ///
    /// [`PictureError`] where the file cannot be read or is no such image.
    pub fn load(path: &Path) -> Result<Self, PictureError> {
        let failed = |why: String| PictureError {
            verb: "read",
            path: path.to_owned(),
            why,
        };
        let file = fs::read(path).map_err(|e| failed(e.to_string()))?;
        // The name's ending says nothing.
        let picture = if file.starts_with(b"\x89PNG\r\n\x1a\n") {
            Self::from_png(&file).map_err(|e| failed(e.to_string()))?
        } else if file.starts_with(b"\xff\xd8\xff") {
            Self::from_jpeg(&file).map_err(|e| failed(e.to_string()))?
        } else {
            return Err(failed("it is neither a PNG nor a JPEG file".into()));
        };
        picture.ok_or_else(|| failed("the image is empty".into()))
    }

    /// The image in a PNG file; `None` as for [`Picture::new`].
    fn from_png(file: &[u8]) -> Result<Option<Self>, png::DecodingError> {
        // The user's own file: it may be as large as memory is.
        let mut decoder =
            png::Decoder::new_with_limits(Cursor::new(file), Limits { bytes: usize::MAX });
        decoder
            .set_transformations(Transformations::normalize_to_color8() | Transformations::ALPHA);
        let mut reader = decoder.read_info()?;
        let size = reader
            .output_buffer_size()
            .ok_or(png::DecodingError::LimitsExceeded)?;
        let mut bytes = vec![0; size];
        let info = reader.next_frame(&mut bytes)?;
        bytes.truncate(info.buffer_size());
        if info.color_type == ColorType::GrayscaleAlpha {
            let pixels = bytes.chunks_exact(2);
            bytes = pixels.flat_map(|p| [p[0], p[0], p[0], p[1]]).collect();
        }
        Ok(Self::from_bytes(info.width, info.height, &bytes))
    }

    /// The image in a JPEG file; `None` as for [`Picture::new`].
    fn from_jpeg(file: &[u8]) -> Result<Option<Self>, zune_jpeg::errors::DecodeErrors> {
        let options = DecoderOptions::default()
            .set_strict_mode(false)
            .set_max_width(usize::MAX)
            .set_max_height(usize::MAX)
            .jpeg_set_out_colorspace(ColorSpace::RGBA);
        let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
        let bytes = decoder.decode()?;
        Ok(decoder
            .info()
            .and_then(|info| Self::from_bytes(info.width.into(), info.height.into(), &bytes)))
    }

    /// Writes a PNG file with 8 bits a channel and alpha.
    ///
    /// # Errors
    ///
    /// [`PictureError`] where the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), PictureError> {
        let failed = |why: String| PictureError {
            verb: "write",
            path: path.to_owned(),
            why,
        };
        let file = fs::File::create(path).map_err(|e| failed(e.to_string()))?;
        let mut encoder = png::Encoder::new(BufWriter::new(file), self.width, self.height);
        encoder.set_color(ColorType::Rgba);
        encoder.set_compression(png::Compression::Fast);
        encoder
            .write_header()
            .and_then(|mut writer| {
                writer.write_image_data(&self.to_bytes())?;
                writer.finish()
            })
            .map_err(|e| failed(e.to_string()))
    }
}

/// An image file could not be read or written.
#[derive(Debug)]
pub struct PictureError {
    verb: &'static str,
    path: PathBuf,
    why: String,
}

impl fmt::Display for PictureError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, path, why } = self;
        write!(f, "cannot {verb} {}: {why}", path.display())
    }
}

impl std::error::Error for PictureError {}
