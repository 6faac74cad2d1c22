//! The machine code of every source, without a device: its architecture, what its kernels need of a multiprocessor, and
//! the instructions that it must have.
//!
//! Instructions are looked for with `nvdisasm`, from the search path or named by `HOTSEAM_NVDISASM`
//! (`pip install nvidia-cuda-nvdisasm`); without it that test says so and passes.

use hotseam_cuda::Image;
use hotseam_cuda_kernels::images;
use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::Command;

/// What ptxas said of a kernel, as `build.rs` has read it.
struct Resources {
    image: &'static str,
    sm: u32,
    kernel: &'static str,
    /// Of a thread.
    registers: u32,
    /// Bytes of static shared memory of a block.
    shared: u32,
    /// Bytes of a thread: arrays that are indexed by what is not known beforehand, and spilled registers.
    stack: u32,
    /// Bytes of spilled registers, stores and loads.
    spills: u32,
}

const RESOURCES: &[Resources] = include!(concat!(env!("OUT_DIR"), "/resources.rs"));

/// Shared memory of a block on SM120.
const SHARED_MOST: u32 = 101_376;

/// Kernels of the stock variants that use a stack, on one architecture or the other; a patched one never does.
const STACK: [&str; 6] = [
    "hotseam_attention_core_mma",
    "hotseam_indexer_project_few",
    "hotseam_moe_down_few",
    "hotseam_moe_scores_few",
    "hotseam_moe_up_few",
    "hotseam_ops_linear_few",
];

const IMAGES: [(&str, &[Image]); 10] = [
    ("attention", images::ATTENTION),
    ("attention_sm120", images::ATTENTION_SM120),
    ("faulty", images::FAULTY),
    ("indexer", images::INDEXER),
    ("indexer_sm120", images::INDEXER_SM120),
    ("mhc", images::MHC),
    ("mhc_sm120", images::MHC_SM120),
    ("moe", images::MOE),
    ("moe_sm120", images::MOE_SM120),
    ("ops", images::OPS),
];

/// What machine code must have: image, architecture, instruction.
const INSTRUCTIONS: [(&str, u32, &str); 17] = [
    ("attention_sm120", 90, "HMMA.16816.F32.BF16"),
    ("attention_sm120", 120, "HMMA.16816.F32.BF16"),
    ("attention_sm120", 120, "QMMA.SF.16832.F32.E4M3.E4M3.E8"),
    ("indexer_sm120", 90, "HMMA.16816.F32.BF16"),
    ("indexer_sm120", 120, "QMMA.SF.16832.F32.E4M3.E4M3.E8"),
    ("indexer_sm120", 120, "OMMA.SF.16864.F32.E2M1.E2M1.E8"),
    ("mhc_sm120", 90, "HMMA.16816.F32.BF16"),
    ("mhc_sm120", 120, "HMMA.16816.F32.BF16"),
    ("moe", 90, "HMMA.16816.F32 "),
    ("moe", 120, "HMMA.16816.F32 "),
    ("moe", 90, "LDGSTS.E.BYPASS.128"),
    ("moe", 120, "LDGSTS.E.BYPASS.128"),
    ("ops", 90, "F2FP.F16.E4M3.UNPACK_B"),
    ("ops", 120, "F2FP.F16.E4M3.UNPACK_B"),
    ("moe_sm120", 90, "HMMA.16816.F32.BF16"),
    ("moe_sm120", 120, "HMMA.16816.F32.BF16"),
    ("moe_sm120", 120, "HMUL2.BF16"),
];

#[test]
fn every_image_is_of_its_architecture() {
    for (name, images) in IMAGES {
        assert_eq!(images.iter().map(|image| image.sm).collect::<Vec<_>>(), [90, 120], "{name}");
        for image in images {
            let half = |at: usize| u16::from_le_bytes([image.bytes[at], image.bytes[at + 1]]);
            assert_eq!(&image.bytes[..6], b"\x7fELF\x02\x01", "{name}");
            // `e_machine` of CUDA, and the compute capability in `e_flags`.
            assert_eq!((half(18), u32::from(image.bytes[49])), (190, image.sm), "{name}");
        }
    }
    let listed: BTreeSet<_> = IMAGES.iter().map(|(name, _)| *name).collect();
    let built: BTreeSet<_> = RESOURCES.iter().map(|r| r.image).collect();
    assert_eq!(listed, built);
}

#[test]
fn every_kernel_fits_a_multiprocessor_and_spills_nothing() {
    for Resources { image, sm, kernel, registers, shared, stack, spills } in RESOURCES {
        println!(
            "{image} sm_{sm} {kernel}: {registers} registers, {shared} B shared, {stack} B stack, {spills} B spilled"
        );
        assert!((1..=255).contains(registers), "{kernel} on sm_{sm}: {registers} registers");
        assert!(*shared <= SHARED_MOST, "{kernel} on sm_{sm}: {shared} bytes of shared memory");
        if !STACK.contains(kernel) {
            assert_eq!((*stack, *spills), (0, 0), "{kernel} on sm_{sm}: bytes of stack, and spilled");
        }
    }
}

#[test]
fn machine_code_has_the_instructions_it_is_for() {
    let tool = std::env::var("HOTSEAM_NVDISASM").unwrap_or_else(|_| "nvdisasm".to_owned());
    if Command::new(&tool).arg("--version").output().is_err() {
        println!(
            "skipped: {tool} is not installed; pip install nvidia-cuda-nvdisasm, or name it in HOTSEAM_NVDISASM"
        );
        return;
    }
    for (name, sm, instruction) in INSTRUCTIONS {
        let (_, images) = IMAGES.iter().find(|(of, _)| *of == name).expect("an image");
        let image = images.iter().find(|image| image.sm == sm).expect("an architecture");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(image.bytes).expect("room");
        let out = Command::new(&tool).arg(file.path()).output().expect("nvdisasm runs");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(text.contains(instruction), "{name} for sm_{sm} has no {instruction}");
    }
}
