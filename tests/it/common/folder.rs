//! Temporary folders, also with a backbone and pictures.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use assert_cmd::assert::Assert;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use swinq_model::Size;
use swinq_testing::XorShift;

use super::{files, swinq, write_backbone, write_png};

/// Feature maps by their names in a file: shape and values.
pub type Maps = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A temporary folder, which is removed with its content when it is dropped. Modules of tests add methods for
/// their own files.
pub struct Folder(tempfile::TempDir);

impl Folder {
    /// An empty folder.
    pub fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    /// The folder itself.
    pub fn as_path(&self) -> &Path {
        self.0.path()
    }

    /// The path of the file `name` in the folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the file `name`, and makes the folders that it needs. Returns its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, content).unwrap();
        path
    }

    /// Asserts that the folder holds only the files that the test put there.
    #[track_caller]
    pub fn holds_only(&self, names: &[&str]) {
        assert_eq!(files(self.as_path()), names);
    }
}

/// Folders with a backbone, `backbone.safetensors`, and pictures, `photos/0.png` and so on.
impl Folder {
    /// `count` pictures as [`write_pictures`] writes them.
    pub fn with_photos(count: usize, sizes: &[(usize, usize)], pixels: fn(usize, Size) -> Vec<u8>) -> Folder {
        let folder = Folder::new();
        write_backbone(&folder.backbone());
        write_pictures(&folder.path("photos"), 0..count, sizes, pixels);
        folder
    }

    /// Pictures of noise of these sizes.
    pub fn of_noise(sizes: &[(usize, usize)]) -> Folder {
        Folder::with_photos(sizes.len(), sizes, noise)
    }

    /// The file of the backbone.
    pub fn backbone(&self) -> PathBuf {
        self.path("backbone.safetensors")
    }

    /// The file of picture number `index`.
    pub fn image(&self, index: usize) -> PathBuf {
        self.path(&format!("photos/{index}.png"))
    }

    /// The file that [`Folder::features`] writes.
    pub fn output(&self) -> PathBuf {
        self.path("maps.safetensors")
    }

    /// `swinq features` of `images` by the model in the file `model`, with more words.
    pub fn features(&self, model: &str, images: &[PathBuf], more: &[&str]) -> Assert {
        let mut command = swinq(["features"]);
        command.arg(self.path(model)).args(images).arg("--features").arg(self.output()).args(more).assert()
    }

    /// The maps of all pictures that [`Folder::features`] writes.
    pub fn maps(&self, model: &str, more: &[&str]) -> Maps {
        self.features(model, &[self.path("photos")], more).success();
        read_maps(&std::fs::read(self.output()).unwrap())
    }

    /// `swinq calibrate` of the backbone on all pictures, with more words.
    pub fn calibrate(&self, output: &str, more: &[&str]) -> Assert {
        let mut command = swinq(["calibrate"]);
        command.arg(self.backbone()).arg("--data-path").arg(self.path("photos"));
        command.arg("--output").arg(self.path(output)).args(more).assert()
    }
}

/// Writes the pictures with the numbers `indices` into the new folder `folder`. `sizes` are their heights and
/// widths, in turn, and `pixels` gives the pixels of a number and a size.
pub fn write_pictures(
    folder: &Path,
    indices: Range<usize>,
    sizes: &[(usize, usize)],
    pixels: fn(usize, Size) -> Vec<u8>,
) {
    std::fs::create_dir(folder).unwrap();
    for index in indices {
        let (height, width) = sizes[index % sizes.len()];
        let size = Size::new(height, width);
        write_png(&folder.join(format!("{index}.png")), size, &pixels(index, size));
    }
}

/// A picture of noise.
fn noise(index: usize, size: Size) -> Vec<u8> {
    XorShift::new(index as u64 + 1).bytes(3 * size.area())
}

/// A smooth picture: noise would have other activations than a photograph.
pub fn waves(index: usize, size: Size) -> Vec<u8> {
    let value = |y: usize, x: usize, channel: usize| {
        let (y, x) = (y as f32 / 9.0, x as f32 / (5.0 + index as f32));
        (127.0 + 60.0 * (x + channel as f32).sin() + 60.0 * (y * x / 3.0).cos()) as u8
    };
    let row = |y| (0..size.width).flat_map(move |x| (0..3).map(move |channel| value(y, x, channel)));
    (0..size.height).flat_map(row).collect()
}

/// Feature maps from the bytes of a file.
pub fn read_maps(bytes: &[u8]) -> Maps {
    let of_tensor = |(name, view): (String, TensorView<'_>)| {
        assert_eq!(view.dtype(), Dtype::F32);
        let (words, _) = view.data().as_chunks::<4>();
        (name, (view.shape().to_vec(), words.iter().map(|&word| f32::from_le_bytes(word)).collect()))
    };
    SafeTensors::deserialize(bytes).unwrap().tensors().into_iter().map(of_tensor).collect()
}
