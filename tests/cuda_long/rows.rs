//! Batches: a few rows for truth, and the same among many padded ones for the device.

use crate::kit::{Both, Kit, Place, read, tensor, write};
use fastrand::Rng;
use hotseam_abi::{Batch, SeqSpan, TensorRef, device, dtype};
use hotseam_cuda::Buffer;

/// Rows that share the one sequence: runs of neighbouring positions, each a sequence of the batch with the same pages.
pub(crate) struct Rows {
    pub(crate) phase: u32,
    pub(crate) positions: Vec<usize>,
    pub(crate) seqs: usize,
    /// Row on the device of each row: the first half at the beginning of the batch, the others at its end.
    pub(crate) places: Vec<usize>,
    /// Rows on the device, padding included.
    pub(crate) total: usize,
    host_arrays: Arrays<Vec<i32>>,
    device_arrays: Arrays<Both<i32>>,
    spans: Vec<SeqSpan>,
}

struct Arrays<T> {
    positions: T,
    row_seq: T,
}

impl Rows {
    /// `runs` are first position and number of rows; `total` is at least the number of all.
    pub(crate) fn new(phase: u32, runs: &[(usize, usize)], total: usize) -> Self {
        let (mut positions, mut row_seq, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        for (s, (position, rows)) in runs.iter().enumerate() {
            let span = [positions.len(), *rows, *position].map(|n| n as u32);
            spans.push(SeqSpan { row_begin: span[0], row_count: span[1], position: span[2], chunk: 0 });
            positions.extend(*position..position + rows);
            row_seq.extend(std::iter::repeat_n(s as i32, *rows));
        }
        let n = positions.len();
        assert!(total >= n, "{n} rows in a batch of {total}");
        let places: Vec<usize> = (0..n).map(|i| if i < n / 2 { i } else { total - n + i }).collect();
        let spread = |values: &[i32]| {
            let mut all = vec![-1i32; total];
            places.iter().zip(values).for_each(|(place, value)| all[*place] = *value);
            Both::new(all)
        };
        let numbers: Vec<i32> = positions.iter().map(|p| *p as i32).collect();
        let device_arrays = Arrays { positions: spread(&numbers), row_seq: spread(&row_seq) };
        let host_arrays = Arrays { positions: numbers, row_seq };
        Self { phase, positions, seqs: runs.len(), places, total, host_arrays, device_arrays, spans }
    }

    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    /// Rows of a batch in this place.
    pub(crate) fn count(&self, place: Place) -> usize {
        if place == device::CPU { self.len() } else { self.total }
    }

    /// The batch; the struct is in host memory, its arrays are in `place`. What a plugin for a device is given of sequences is never
    /// read there but on the host.
    pub(crate) fn batch(&self, place: Place) -> Batch {
        let (positions, row_seq) = match place {
            device::CPU => (self.host_arrays.positions.as_ptr(), self.host_arrays.row_seq.as_ptr()),
            _ => (self.device_arrays.positions.pointer(place), self.device_arrays.row_seq.pointer(place)),
        };
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: self.count(place) as u32,
            n_seqs: self.seqs as u32,
            positions,
            row_seq,
            seqs: self.spans.as_ptr(),
        }
    }

    /// Numbers by row, `width` each; those of padded rows are -1.
    pub(crate) fn numbers(&self, values: &[i32], width: usize) -> Both<i32> {
        let mut all = vec![-1i32; self.total * width];
        for (place, row) in self.places.iter().zip(values.chunks_exact(width.max(1))) {
            all[place * width..][..width].copy_from_slice(row);
        }
        Both::new(all)
    }
}

/// A tensor of f32 or i32 by row. Rows that are padding are poison.
pub(crate) struct ByRow {
    pub(crate) host: Vec<f32>,
    memory: Buffer,
    width: usize,
    places: Vec<usize>,
    total: usize,
    poison: u8,
}

impl ByRow {
    /// Rows of `width` values.
    pub(crate) fn new(kit: &Kit, rows: &Rows, width: usize, host: Vec<f32>) -> Self {
        let out = Self::out(kit, rows, width);
        for (place, values) in out.places.iter().zip(host.chunks_exact(width)) {
            write(out.at(*place), values);
        }
        Self { host, ..out }
    }

    /// An output.
    pub(crate) fn out(kit: &Kit, rows: &Rows, width: usize) -> Self {
        let poison = kit.poison();
        Self {
            host: vec![f32::from_bits(u32::from_ne_bytes([poison; 4])); rows.len() * width],
            memory: kit.poisoned(rows.total * width * 4, "rows"),
            width,
            places: rows.places.clone(),
            total: rows.total,
            poison,
        }
    }

    fn at(&self, row: usize) -> u64 {
        self.memory.address() + (row * self.width * 4) as u64
    }

    /// Rows of the shape `shape`.
    pub(crate) fn tensor(&self, place: Place, shape: &[usize]) -> TensorRef {
        let (rows, address) = match place {
            device::CPU => (self.places.len(), self.host.as_ptr() as u64),
            _ => (self.total, self.memory.address()),
        };
        tensor(place, address, dtype::F32, &[&[rows], shape].concat())
    }

    /// The first word in `place`.
    pub(crate) fn pointer<T>(&self, place: Place) -> *mut T {
        self.tensor(place, &[self.width]).data.cast()
    }

    /// What the device has in the rows that are no padding.
    pub(crate) fn found(&self) -> Vec<f32> {
        self.places.iter().flat_map(|place| read::<f32>(self.at(*place), self.width)).collect()
    }

    /// Bytes of the whole.
    pub(crate) fn reach(&self) -> usize {
        self.total * self.width * 4
    }

    /// Fails if a padded row was written; looks at those beside the others, at those where their bytes would lie if offsets had
    /// fewer bits, and at random ones.
    pub(crate) fn canaries(&self, what: &str, rng: &mut Rng) {
        let mut at: Vec<usize> = (0..50).map(|_| rng.usize(..self.total)).collect();
        for place in &self.places {
            at.extend([place.wrapping_sub(1), place + 1]);
            let offset = place * self.width * 4;
            let aliases = [1usize << 31, 1 << 32, 1 << 33].map(|bits| offset % bits / (self.width * 4));
            at.extend(aliases.into_iter().flat_map(|row| [row, row + 1]));
        }
        for row in at.into_iter().filter(|row| *row < self.total && !self.places.contains(row)) {
            let found: Vec<u8> = read(self.at(row), 4 * self.width);
            let bad = found.iter().position(|byte| *byte != self.poison);
            assert_eq!(bad, None, "{what}: padded row {row} of {} was written", self.total);
        }
    }
}
