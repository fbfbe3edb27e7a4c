//! A safetensors file that is written tensor by tensor.
//!
//! The header of the format stands before the tensors and has their places. [`TensorFile::create`] reserves
//! room for the header of all planned tensors. Some of them may stay away: the header of the rest is shorter,
//! and spaces fill its room, which the format allows. The file has no gaps, as the format demands.

use std::fmt::Write as _;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use crate::atomic::AtomicFile;
use crate::checkpoint::MAX_HEADER;
use crate::error::ModelError;

/// Bytes of the number before the header, which states its length.
const LENGTH: usize = size_of::<u64>();

/// Values that are converted to bytes at a time.
const CHUNK: usize = 1 << 14;

/// The name and the shape of a tensor, whose elements are f32.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
}

impl Planned {
    fn bytes(&self) -> u64 {
        self.shape.iter().fold(4, |bytes, &side| bytes * side as u64)
    }
}

/// A safetensors file of f32 tensors that is being written. It exists under its path, completely, once
/// [`TensorFile::finish`] has returned; if it is dropped before, nothing is left of it.
#[derive(Debug)]
pub struct TensorFile {
    file: AtomicFile,
    planned: Vec<Planned>,
    /// Of each planned tensor, whether it is in the file.
    written: Vec<bool>,
    /// The number of tensors that were written or passed over.
    next: usize,
    /// Bytes of the room for the header.
    room: usize,
    bytes: Vec<u8>,
}

impl TensorFile {
    /// Begins the file `path`, for tensors that are written in the order of `planned`. The names must differ.
    ///
    /// # Errors
    /// Those of [`AtomicFile::create`]; [`ModelError::File`] for more tensors than the header of a file may
    /// state; [`ModelError::Io`] if the system refuses the room.
    pub fn create(path: &Path, planned: Vec<Planned>) -> Result<TensorFile, ModelError> {
        let written = vec![true; planned.len()];
        let room = header(&planned, &written).len().next_multiple_of(8);
        if room as u64 > MAX_HEADER {
            let problem = format!(
                "the header for {} tensors would have {room} bytes, and readers accept {MAX_HEADER}; write fewer tensors into \
                 a file",
                planned.len()
            );
            return Err(ModelError::file(path, problem));
        }
        let mut file = AtomicFile::create(path)?;
        file.write(|file| file.write_all(&vec![b' '; LENGTH + room]))?;
        let written = vec![false; planned.len()];
        Ok(TensorFile { file, planned, written, next: 0, room, bytes: Vec::new() })
    }

    /// Writes the tensor `name`. Planned tensors before it that were not written stay away.
    ///
    /// # Errors
    /// [`ModelError::Io`] naming the file.
    ///
    /// # Panics
    /// If the tensor is not planned behind the last one, or `values` has another number of values.
    pub fn write(&mut self, name: &str, values: &[f32]) -> Result<(), ModelError> {
        let found = self.planned[self.next..].iter().position(|planned| planned.name == name);
        let index = self.next + found.expect("tensors are written in the planned order");
        assert_eq!(self.planned[index].bytes(), 4 * values.len() as u64, "values of {name}");
        let bytes = &mut self.bytes;
        self.file.write(|file| {
            for chunk in values.chunks(CHUNK) {
                bytes.clear();
                bytes.extend(chunk.iter().flat_map(|value| value.to_le_bytes()));
                file.write_all(bytes)?;
            }
            Ok(())
        })?;
        (self.written[index], self.next) = (true, index + 1);
        Ok(())
    }

    /// Writes the header and gives the file its path.
    ///
    /// # Errors
    /// Those of [`AtomicFile::commit`].
    pub fn finish(self) -> Result<(), ModelError> {
        let TensorFile { mut file, planned, written, room, .. } = self;
        let header = header(&planned, &written);
        assert!(header.len() <= room, "fewer tensors have no longer header");
        file.write(|file| {
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&(room as u64).to_le_bytes())?;
            file.write_all(header.as_bytes())
        })?;
        file.commit()
    }
}

/// The header of a file with the `written` ones of the `planned` tensors, one behind the other.
fn header(planned: &[Planned], written: &[bool]) -> String {
    let (mut text, mut start) = ("{".to_owned(), 0);
    for (tensor, _) in planned.iter().zip(written).filter(|(_, written)| **written) {
        let end = start + tensor.bytes();
        let separator = if start == 0 && text.len() == 1 { "" } else { "," };
        let (name, shape) = (serde_json::Value::from(&tensor.name[..]), serde_json::json!(tensor.shape));
        write!(text, r#"{separator}{name}:{{"dtype":"F32","shape":{shape},"data_offsets":[{start},{end}]}}"#)
            .expect("a text can be written to");
        start = end;
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use safetensors::SafeTensors;

    use super::*;

    fn planned(shapes: &[(&str, &[usize])]) -> Vec<Planned> {
        shapes
            .iter()
            .map(|(name, shape)| Planned { name: (*name).to_owned(), shape: shape.to_vec() })
            .collect()
    }

    /// Values that differ from tensor to tensor.
    fn values(name: &str, count: usize) -> Vec<f32> {
        (0..count).map(|i| i as f32 / 7.0 - name.len() as f32).collect()
    }

    fn read(bytes: &[u8]) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
        let file = SafeTensors::deserialize(bytes).unwrap();
        let of_tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
            let (words, rest) = view.data().as_chunks::<4>();
            assert!(rest.is_empty() && view.dtype() == safetensors::Dtype::F32);
            (name, (view.shape().to_vec(), words.iter().map(|&word| f32::from_le_bytes(word)).collect()))
        };
        file.tensors().into_iter().map(of_tensor).collect()
    }

    #[test]
    fn the_file_is_one_that_safetensors_reads() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.safetensors");
        // The last is longer than a chunk, and a name has characters that JSON escapes.
        let shapes: [(&str, &[usize]); 4] =
            [("0.a", &[2, 3, 4]), ("b \"\\", &[1]), ("c", &[0, 5]), ("d", &[3, 7000])];
        let write = |left_out: &[&str]| {
            let mut file = TensorFile::create(&path, planned(&shapes)).unwrap();
            for (name, shape) in shapes.iter().filter(|(name, _)| !left_out.contains(name)) {
                file.write(name, &values(name, shape.iter().product())).unwrap();
            }
            file.finish().unwrap();
            std::fs::read(&path).unwrap()
        };
        for left_out in [&[][..], &["0.a"], &["b \"\\"], &["d"], &["0.a", "d"], &["0.a", "b \"\\", "c", "d"]]
        {
            let found = read(&write(left_out));
            let expected = shapes.iter().filter(|(name, _)| !left_out.contains(name)).map(|(name, shape)| {
                let count = shape.iter().product();
                ((*name).to_owned(), (shape.to_vec(), values(name, count)))
            });
            assert_eq!(found, expected.collect(), "without {left_out:?}");
        }
        // Every tensor begins at a multiple of its elements' size.
        let bytes = write(&["0.a"]);
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        assert!(length.is_multiple_of(8) && bytes[8] == b'{', "{length}");
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn what_is_not_finished_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let mut file = TensorFile::create(&path, planned(&[("a", &[2])])).unwrap();
        file.write("a", &[1.0, 2.0]).unwrap();
        drop(file);
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
        std::fs::write(&path, "old").unwrap();
        drop(TensorFile::create(&path, planned(&[("a", &[2])])).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn more_tensors_than_a_header_states_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let long = Planned { name: "n".repeat(MAX_HEADER as usize), shape: vec![1] };
        let error = TensorFile::create(&folder.path().join("f"), vec![long]).unwrap_err().to_string();
        assert!(error.contains("1 tensors") && error.contains("fewer"), "{error}");
    }

    #[test]
    #[should_panic(expected = "planned order")]
    fn another_order_is_a_mistake() {
        let folder = tempfile::tempdir().unwrap();
        let mut file =
            TensorFile::create(&folder.path().join("f"), planned(&[("a", &[1]), ("b", &[1])])).unwrap();
        file.write("b", &[0.0]).unwrap();
        file.write("a", &[0.0]).unwrap();
    }
}
