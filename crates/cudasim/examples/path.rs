//! Prints the path of the simulated driver, for `WINDROW_CUDA_DRIVER`.

fn main() {
    println!("{}", cudasim::LIBRARY);
}
