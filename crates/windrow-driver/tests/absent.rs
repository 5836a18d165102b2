//! A process whose driver library does not exist: error values everywhere.
use windrow_driver::{entry, load, load_from, Function};

#[test]
fn without_a_library_there_are_errors_and_no_entries() {
    let first = load_from(c"libwindrow-no-such-driver.so").unwrap_err();
    assert!(first.contains("libwindrow-no-such-driver.so"), "{first}");
    assert_eq!(load(), Err(first), "the first call decides");
    assert_eq!(entry(Function::cuInit), None);
    assert_eq!(entry(Function::cuMemcpyBatchAsync_v2), None);
    // SAFETY: an empty slot takes any arguments and answers by itself.
    #[allow(unsafe_code)]
    let code = unsafe { cust_raw::cuInit(0) };
    assert_eq!(code, cust_raw::CUresult::CUDA_ERROR_NO_DEVICE);
}
