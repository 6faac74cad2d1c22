//! Compiles each `cuda/*.cu` to machine code with NVRTC, for each architecture, and writes the table of images that `src/images.rs`
//! includes, and what each kernel needs of a multiprocessor, which `tests/images.rs` looks at. NVRTC is opened from `HOTSEAM_NVRTC` (its directory), else from where `scripts/get-nvrtc` puts it.

use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, ptr};

/// Compute capability, and the architecture that NVRTC is told. sm_120a has the instructions of its chip that sm_120 lacks.
const ARCHITECTURES: [(u32, &str); 2] = [(90, "sm_90"), (120, "sm_120a")];

/// What kernels may include beside the sources: the contract's C headers want integer types, which NVRTC has no header for.
const STDINT: &str = "typedef signed char int8_t; typedef unsigned char uint8_t; typedef short int16_t; \
    typedef unsigned short uint16_t; typedef int int32_t; typedef unsigned int uint32_t; typedef long long int64_t; \
    typedef unsigned long long uint64_t; typedef unsigned long long uintptr_t;";

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let root = here.join("../..");
    let (sources, headers) = (here.join("cuda"), root.join("abi/contract/include"));
    for path in [&sources, &headers] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    println!("cargo:rerun-if-env-changed=HOTSEAM_NVRTC");
    let nvrtc = Nvrtc::open(&root).unwrap_or_else(|what| fail(&what));
    let mut files: Vec<PathBuf> = fs::read_dir(&sources)
        .unwrap_or_else(|e| fail(&format!("{}: {e}", sources.display())))
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "cu"))
        .collect();
    files.sort();
    let (mut table, mut resources) = (String::new(), String::from("&[\n"));
    for file in &files {
        let name = file.file_stem().and_then(|stem| stem.to_str()).expect("names of sources are plain");
        let upper = name.to_uppercase();
        writeln!(table, "/// `cuda/{name}.cu`.\npub static {upper}: &[Image] = &[").expect("a string grows");
        for (sm, architecture) in ARCHITECTURES {
            let (cubin, log) =
                nvrtc.compile(file, architecture, &[&sources, &headers]).unwrap_or_else(|log| fail(&log));
            for kernel in kernels(&log).unwrap_or_else(|line| fail(&format!("ptxas says `{line}`:\n{log}"))) {
                let Kernel { name: kernel, registers, shared, stack, spills } = kernel;
                writeln!(
                    resources,
                    "    Resources {{ image: {name:?}, sm: {sm}, kernel: {kernel:?}, registers: {registers}, \
                     shared: {shared}, stack: {stack}, spills: {spills} }},"
                )
                .expect("a string grows");
            }
            let path = out.join(format!("{name}.{architecture}.cubin"));
            fs::write(&path, cubin).unwrap_or_else(|e| fail(&format!("{}: {e}", path.display())));
            writeln!(table, "    Image {{ sm: {sm}, bytes: include_bytes!({path:?}) }},")
                .expect("a string grows");
        }
        table.push_str("];\n");
    }
    resources.push_str("]\n");
    for (name, text) in [("images.rs", table), ("resources.rs", resources)] {
        fs::write(out.join(name), text).unwrap_or_else(|e| fail(&e.to_string()));
    }
}

/// What ptxas says of a kernel: registers of a thread, bytes of static shared memory of a block, and of a thread bytes of
/// stack, which are arrays that registers do not hold, and of registers that are spilled.
struct Kernel {
    name: String,
    registers: u32,
    shared: u32,
    stack: u32,
    spills: u32,
}

/// The kernels of a log; the error is a line that is not understood.
fn kernels(log: &str) -> Result<Vec<Kernel>, &str> {
    let mut all: Vec<Kernel> = Vec::new();
    for line in log.lines() {
        // The number before some words.
        let before = |words: &str| {
            let number = line.split_once(words).and_then(|(before, _)| before.split_whitespace().next_back());
            number.and_then(|number| number.parse::<u32>().ok())
        };
        if let Some((_, entry)) = line.split_once("Compiling entry function '") {
            let name = entry.split('\'').next().unwrap_or_default().to_owned();
            all.push(Kernel { name, registers: 0, shared: 0, stack: 0, spills: 0 });
            continue;
        }
        let Some(kernel) = all.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            kernel.stack = before(" bytes stack frame").ok_or(line)?;
            let (stores, loads) = (before(" bytes spill stores"), before(" bytes spill loads"));
            kernel.spills = stores.zip(loads).map(|(stores, loads)| stores + loads).ok_or(line)?;
        } else if line.contains("Used ") && line.contains(" registers") {
            kernel.registers = before(" registers").ok_or(line)?;
            kernel.shared = before(" bytes smem").unwrap_or(0);
        }
    }
    Ok(all)
}

fn fail(what: &str) -> ! {
    eprintln!("{what}");
    std::process::exit(1)
}

type Program = *mut c_void;

/// The compiler's library.
struct Nvrtc(Library);

/// Calls a function of the library by its C type.
macro_rules! call {
    ($self:ident, $name:literal, ($($type:ty),*), ($($argument:expr),*)) => {{
        // SAFETY: the type is that of the function's documentation, and so are the arguments.
        unsafe {
            let f = $self.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(concat!($name, "\0").as_bytes());
            match f.map(|f| f($($argument),*)) {
                Ok(0) => Ok(()),
                Ok(code) => Err(format!(concat!($name, " failed with code {}"), code)),
                Err(e) => Err(e.to_string()),
            }
        }
    }};
}

impl Nvrtc {
    fn open(root: &Path) -> Result<Self, String> {
        let given = env::var_os("HOTSEAM_NVRTC").map(PathBuf::from);
        let directory = given.unwrap_or_else(|| root.join("target/nvrtc/nvidia/cu13/lib"));
        let find = |prefix: &str| {
            let entries = fs::read_dir(&directory).ok()?;
            let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
            let mut found: Vec<_> = paths
                .filter(|path| {
                    path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(prefix))
                })
                .collect();
            found.sort();
            found.into_iter().next()
        };
        let missing = || {
            format!(
                "NVRTC, which compiles CUDA kernels, is not in {}. Run scripts/get-nvrtc, or name the directory of its \
                 libraries in HOTSEAM_NVRTC; or build without the CUDA variants: `cargo build --release`.",
                directory.display()
            )
        };
        let (library, builtins) =
            (find("libnvrtc.so").ok_or_else(missing)?, find("libnvrtc-builtins.so").ok_or_else(missing)?);
        // NVRTC opens its second library by name; it is found if it is open already.
        // SAFETY: both are the compiler's own libraries.
        unsafe {
            let builtins = libloading::os::unix::Library::open(
                Some(&builtins),
                libloading::os::unix::RTLD_NOW | libloading::os::unix::RTLD_GLOBAL,
            );
            std::mem::forget(builtins.map_err(|e| e.to_string())?);
            Library::new(&library).map(Self).map_err(|e| e.to_string())
        }
    }

    /// The cubin of a source, and the log with what kernels need; the error is the compiler's log.
    fn compile(
        &self,
        file: &Path,
        architecture: &str,
        includes: &[&PathBuf],
    ) -> Result<(Vec<u8>, String), String> {
        let text = |s: String| CString::new(s).expect("sources and paths have no zero bytes");
        let source = text(fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?);
        let name = text(file.display().to_string());
        let (header_text, header_names) =
            ([text(STDINT.into()), text(String::new())], [c"stdint.h", c"stddef.h"]);
        let headers: Vec<_> = header_text.iter().map(|h| h.as_ptr()).collect();
        let names: Vec<_> = header_names.iter().map(|h| h.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        type Texts = *const *const c_char;
        call!(
            self,
            "nvrtcCreateProgram",
            (*mut Program, *const c_char, *const c_char, c_int, Texts, Texts),
            (
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                headers.len() as c_int,
                headers.as_ptr(),
                names.as_ptr()
            )
        )?;
        let mut options = vec![
            text(format!("--gpu-architecture={architecture}")),
            text("--std=c++17".into()),
            text("--generate-line-info".into()),
            text("--ptxas-options=-v".into()),
        ];
        options.extend(includes.iter().map(|path| text(format!("--include-path={}", path.display()))));
        let pointers: Vec<_> = options.iter().map(|option| option.as_ptr()).collect();
        let compiled = call!(
            self,
            "nvrtcCompileProgram",
            (Program, c_int, Texts),
            (program, pointers.len() as c_int, pointers.as_ptr())
        );
        let mut size = 0usize;
        call!(self, "nvrtcGetProgramLogSize", (Program, *mut usize), (program, &raw mut size))?;
        let mut log = vec![0u8; size + 1];
        call!(self, "nvrtcGetProgramLog", (Program, *mut c_char), (program, log.as_mut_ptr().cast()))?;
        let log =
            CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default().into_owned();
        if let Err(what) = compiled {
            return Err(format!("{} for {architecture}: {what}\n{log}", file.display()));
        }
        call!(self, "nvrtcGetCUBINSize", (Program, *mut usize), (program, &raw mut size))?;
        let mut cubin = vec![0u8; size];
        call!(self, "nvrtcGetCUBIN", (Program, *mut c_char), (program, cubin.as_mut_ptr().cast()))?;
        call!(self, "nvrtcDestroyProgram", (*mut Program), (&raw mut program))?;
        Ok((cubin, log))
    }
}
