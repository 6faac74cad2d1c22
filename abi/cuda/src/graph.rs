//! Graphs: what a stretch of calls enqueued, launched again as one.

use crate::error::{Result, check};
use crate::stream::Stream;
use cudarc::driver::sys::{self, CUgraphExec, CUstream, CUstreamCaptureMode};

/// A graph that can be launched. The addresses that its nodes use are those of the capture.
#[derive(Debug)]
pub struct Graph {
    exec: CUgraphExec,
    nodes: usize,
}

// SAFETY: a graph may be launched from any thread whose context is its own.
unsafe impl Send for Graph {}

/// Runs `enqueue` with everything on `stream` recorded instead of run. Only this thread's calls are watched, so other threads may
/// use the device meanwhile.
///
/// # Errors
/// The error of `enqueue`, or of the driver, which refuses calls that wait.
pub fn capture<E: From<crate::CudaError>>(
    stream: &Stream,
    enqueue: impl FnOnce() -> std::result::Result<(), E>,
) -> std::result::Result<Graph, E> {
    let raw = stream.raw() as CUstream;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    // SAFETY: the stream is alive.
    check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(raw, mode) })?;
    let done = enqueue();
    let mut graph = std::ptr::null_mut();
    // SAFETY: capture has begun on the stream, and ends here also if `enqueue` failed.
    let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(raw, &raw mut graph) });
    let result = done.and_then(|()| ended.map_err(E::from)).and_then(|()| {
        let (mut exec, mut nodes) = (std::ptr::null_mut(), 0);
        // SAFETY: the graph was just made; a null list asks for the number of nodes.
        unsafe {
            check("cuGraphGetNodes", sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &raw mut nodes))?;
            check("cuGraphInstantiate", sys::cuGraphInstantiateWithFlags(&raw mut exec, graph, 0))?;
        }
        Ok(Graph { exec, nodes })
    });
    if !graph.is_null() {
        // SAFETY: made above; the executable graph does not need it.
        let _ = unsafe { sys::cuGraphDestroy(graph) };
    }
    result
}

impl Graph {
    /// Enqueues it.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.exec, stream.raw() as CUstream) })
    }

    /// Number of nodes: kernels, copies and fills.
    pub fn nodes(&self) -> usize {
        self.nodes
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: instantiated once.
        let _ = unsafe { sys::cuGraphExecDestroy(self.exec) };
    }
}
