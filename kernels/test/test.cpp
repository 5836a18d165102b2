// The kernels on the host, against plain loops. Every read is checked to be of a sample's bytes.
#include <chrono>

#include "copy_test.h"
#include "far_test.h"
#include "walk_test.h"

void on_read(const void* p, size_t bytes) { on_read_checked(p, bytes); }

template <class F>
void timed(const char* name, const F& test) {
    auto begin = std::chrono::steady_clock::now();
    test();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    printf("%-8s ok  %.1f s\n", name, took.count());
}

int main() {
    timed("copy", test_copy);
    timed("pairs", test_pairs);
    timed("casts", test_casts);
    timed("far", test_far);
    timed("walk", [] { test_walk(false, 1000); });
    timed("planar", [] { test_walk(true, 1200); });
}
