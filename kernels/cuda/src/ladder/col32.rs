//! INT8 products of cuBLASLt in the memory orders of the tensor cores before Hopper: activations and results
//! in COL32, and weights in COL4_4R2_8C (Turing) or COL32_2R_4R4 (Ampere, Ada).

use std::ffi::c_void;

use cudarc::cublas::sys::cublasOperation_t;
use cudarc::cublaslt::sys::{self, cublasComputeType_t, cublasLtOrder_t as Order, cudaDataType_t as Type};

use super::{expect, int};
use crate::library::{self, Library};
use crate::{Arch, CudaError, Device, DeviceBuf, DeviceSlice, Stream};

/// A product whose operands are on the device in these orders.
pub struct Col32 {
    handles: Handles,
    layouts: [Layout; 4],
    a: DeviceSlice,
    w: DeviceSlice,
    sums: DeviceSlice,
    shape: (usize, usize),
    device: Device,
}

/// The reason why `arch` does not support these products; `None` if it supports them.
fn refusal(arch: Arch) -> Option<String> {
    (arch.major >= 9).then(|| format!("not supported on {arch}: the COL32 orders exist up to Ada (sm_89)"))
}

/// The order of the weights on `arch`, and the multiple to which their rows are padded.
fn weight_order(arch: Arch) -> (Order, usize) {
    if arch.major >= 8 {
        (Order::CUBLASLT_ORDER_COL32_2R_4R4, 32)
    } else {
        (Order::CUBLASLT_ORDER_COL4_4R2_8C, 8)
    }
}

/// The layouts of A, W and the sums in these orders, and of the sums in row-major order. The library must be
/// loaded.
fn layouts((m, n, k): (usize, usize, usize), order: Order, rows_w: usize) -> Result<[Layout; 4], CudaError> {
    Ok([
        Layout::new(Type::CUDA_R_8I, Order::CUBLASLT_ORDER_COL32, (m, k), 32 * m)?,
        Layout::new(Type::CUDA_R_8I, order, (n, k), 32 * rows_w)?,
        Layout::new(Type::CUDA_R_32I, Order::CUBLASLT_ORDER_COL32, (m, n), 32 * m)?,
        Layout::new(Type::CUDA_R_32I, Order::CUBLASLT_ORDER_ROW, (m, n), n)?,
    ])
}

impl Col32 {
    /// Converts `a` `[m, k]` and `w` `[n, k]`, row-major contiguous INT8 codes, to the orders; `sizes` are m,
    /// n and k.
    ///
    /// # Errors
    /// The GPU does not support these products, cuBLASLt is missing or fails, or the device has too little
    /// memory.
    ///
    /// # Panics
    /// If a slice is too short, or a size is 2^31 or more.
    pub fn new(
        device: &Device,
        stream: &Stream,
        (m, n, k): (usize, usize, usize),
        a: &DeviceSlice,
        w: &DeviceSlice,
    ) -> Result<Col32, CudaError> {
        if let Some(what) = refusal(device.arch()) {
            return Err(CudaError::Unsupported(what));
        }
        expect("ladder: a", a, &[m, k]);
        expect("ladder: w", w, &[n, k]);
        [m, n, k].into_iter().for_each(|size| _ = int(size));
        let (order, whole) = weight_order(device.arch());
        let (columns_a, columns_d) = (k.next_multiple_of(32), n.next_multiple_of(32));
        let rows_w = n.next_multiple_of(whole);
        let handles = Handles::new(device)?;
        let layouts = layouts((m, n, k), order, rows_w)?;
        let product = Col32 {
            a: DeviceBuf::zeroed(device, m * columns_a)?.all(),
            w: DeviceBuf::zeroed(device, rows_w * columns_a)?.all(),
            sums: DeviceBuf::zeroed(device, m * columns_d * 4)?.all(),
            shape: (m, n),
            device: device.clone(),
            handles,
            layouts,
        };
        product.transform(stream, (a, &Layout::plain(m, k)?), (&product.a, &product.layouts[0]))?;
        product.transform(stream, (w, &Layout::plain(n, k)?), (&product.w, &product.layouts[1]))?;
        stream.synchronize()?;
        Ok(product)
    }

    /// Computes the product. Must not be captured.
    ///
    /// # Errors
    /// cuBLASLt fails, or has no algorithm for the sizes.
    pub fn run(&self, stream: &Stream) -> Result<(), CudaError> {
        let (one, zero) = (1_i32, 0_i32);
        let [a, w, d, _] = &self.layouts;
        // SAFETY: handle, descriptor and layouts are alive. The operands have the sizes of their layouts and
        // live in `self`, whose memory is freed only after the work that uses it. The factors have the
        // descriptor's scale type and outlive the call. The null algorithm lets the library choose; it needs
        // no scratch memory.
        let start = || unsafe {
            sys::cublasLtMatmul(
                self.handles.lt,
                self.handles.matmul,
                (&raw const one).cast(),
                self.a.ptr() as *const c_void,
                a.0,
                self.w.ptr() as *const c_void,
                w.0,
                (&raw const zero).cast(),
                self.sums.ptr() as *const c_void,
                d.0,
                self.sums.ptr() as *mut c_void,
                d.0,
                std::ptr::null(),
                std::ptr::null_mut(),
                0,
                stream.handle().cast(),
            )
        };
        stream.submit_now("a product in COL32", || check("cublasLtMatmul", start()))
    }

    /// Writes the sums of the last run to `out`, as row-major INT32 `[m, n]`.
    ///
    /// # Errors
    /// cuBLASLt fails.
    ///
    /// # Panics
    /// If `out` is too short.
    pub fn sums(&self, stream: &Stream, out: &DeviceSlice) -> Result<(), CudaError> {
        expect("ladder: the sums", out, &[self.shape.0, self.shape.1, 4]);
        let [_, _, d, plain] = &self.layouts;
        self.transform(stream, (&self.sums, d), (out, plain))?;
        stream.synchronize()
    }

    /// Copies a matrix from one order to another.
    fn transform(
        &self,
        stream: &Stream,
        from: (&DeviceSlice, &Layout),
        to: (&DeviceSlice, &Layout),
    ) -> Result<(), CudaError> {
        self.device.bind()?;
        let (one, zero) = (1_f32, 0_f32);
        // SAFETY: as in `run`; the callers keep both slices until they have synchronised.
        let start = || unsafe {
            sys::cublasLtMatrixTransform(
                self.handles.lt,
                self.handles.transform,
                (&raw const one).cast(),
                from.0.ptr() as *const c_void,
                from.1.0,
                (&raw const zero).cast(),
                std::ptr::null(),
                std::ptr::null_mut(),
                to.0.ptr() as *mut c_void,
                to.1.0,
                stream.handle().cast(),
            )
        };
        stream.submit_now("a change of order", || check("cublasLtMatrixTransform", start()))
    }
}

/// The library's handle, and the descriptors of the product and of a conversion between orders.
struct Handles {
    lt: sys::cublasLtHandle_t,
    matmul: sys::cublasLtMatmulDesc_t,
    transform: sys::cublasLtMatrixTransformDesc_t,
}

impl Handles {
    fn new(device: &Device) -> Result<Handles, CudaError> {
        library::require(Library::CublasLt)?;
        device.bind()?;
        let (lt, matmul, transform) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let mut all = Handles { lt, matmul, transform };
        // SAFETY: the library is loaded and a context is current; each call writes one handle. If a call
        // fails, the handles created before are destroyed with `all`.
        unsafe {
            check("cublasLtCreate", sys::cublasLtCreate(&mut all.lt))?;
            let integers = cublasComputeType_t::CUBLAS_COMPUTE_32I;
            let status = sys::cublasLtMatmulDescCreate(&mut all.matmul, integers, Type::CUDA_R_32I);
            check("cublasLtMatmulDescCreate", status)?;
            let status = sys::cublasLtMatrixTransformDescCreate(&mut all.transform, Type::CUDA_R_32F);
            check("cublasLtMatrixTransformDescCreate", status)?;
        }
        let transposed = cublasOperation_t::CUBLAS_OP_T as u32;
        // SAFETY: the descriptor is alive; the attribute is a 32-bit enumeration, which is copied.
        let status = unsafe {
            let attribute = sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSB;
            sys::cublasLtMatmulDescSetAttribute(all.matmul, attribute, (&raw const transposed).cast(), 4)
        };
        check("cublasLtMatmulDescSetAttribute", status)?;
        Ok(all)
    }
}

impl Drop for Handles {
    fn drop(&mut self) {
        // SAFETY: handles that are not null were created in `new`, and are destroyed only here.
        unsafe {
            if !self.transform.is_null() {
                let _ = sys::cublasLtMatrixTransformDescDestroy(self.transform);
            }
            if !self.matmul.is_null() {
                let _ = sys::cublasLtMatmulDescDestroy(self.matmul);
            }
            if !self.lt.is_null() {
                let _ = sys::cublasLtDestroy(self.lt);
            }
        }
    }
}

/// A cuBLASLt matrix layout.
struct Layout(sys::cublasLtMatrixLayout_t);

impl Layout {
    /// Row-major contiguous INT8 codes. The library must be loaded.
    fn plain(rows: usize, columns: usize) -> Result<Layout, CudaError> {
        Layout::new(Type::CUDA_R_8I, Order::CUBLASLT_ORDER_ROW, (rows, columns), columns)
    }

    /// `rows` x `columns` elements in `order`, with `ld` elements from one row, column or group of columns to
    /// the next. The library must be loaded.
    fn new(
        kind: Type,
        order: Order,
        (rows, columns): (usize, usize),
        ld: usize,
    ) -> Result<Layout, CudaError> {
        let mut layout = Layout(std::ptr::null_mut());
        // SAFETY: `Handles` exists, so the library is loaded; it writes one handle.
        let status = unsafe {
            sys::cublasLtMatrixLayoutCreate(&mut layout.0, kind, rows as u64, columns as u64, ld as i64)
        };
        check("cublasLtMatrixLayoutCreate", status)?;
        let order = order as i32;
        // SAFETY: the layout is alive; the attribute is a 32-bit enumeration, which is copied.
        let status = unsafe {
            let attribute = sys::cublasLtMatrixLayoutAttribute_t::CUBLASLT_MATRIX_LAYOUT_ORDER;
            sys::cublasLtMatrixLayoutSetAttribute(layout.0, attribute, (&raw const order).cast(), 4)
        };
        check("cublasLtMatrixLayoutSetAttribute", status)?;
        Ok(layout)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: created in `new` and destroyed only here.
            let _ = unsafe { sys::cublasLtMatrixLayoutDestroy(self.0) };
        }
    }
}

/// Turns the status of a call into an error that names the call.
fn check(call: &'static str, status: sys::cublasStatus_t) -> Result<(), CudaError> {
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => Ok(()),
        other => Err(CudaError::CublasLt { call, status: format!("{other:?}") }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_follow_the_generation() {
        let arch = |major, minor| Arch { major, minor };
        assert!(refusal(arch(9, 0)).unwrap().contains("not supported on sm_90"));
        assert!(refusal(arch(12, 0)).is_some() && refusal(arch(8, 9)).is_none());
        assert_eq!(weight_order(arch(7, 5)), (Order::CUBLASLT_ORDER_COL4_4R2_8C, 8));
        assert_eq!(weight_order(arch(8, 6)), (Order::CUBLASLT_ORDER_COL32_2R_4R4, 32));
    }
}
