// The kernels on the host, lane by lane, against plain loops. Every read is checked to be of a sample's bytes.
#include <chrono>

#include "launch_test.h"
#include "line_test.h"
#include "planes_test.h"
#include "rows_test.h"
#include "short_test.h"
#include "strided_test.h"

void on_read(const void* p, size_t bytes) { on_read_checked(p, bytes); }

template <class F>
void timed(const char* name, const F& test) {
    auto begin = std::chrono::steady_clock::now();
    test();
    std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    printf("%-8s ok  %.1f s\n", name, took.count());
}

int main() {
    timed("launch", test_launch);
    timed("line", test_line);
    timed("planes", test_planes);
    timed("rows", test_rows);
    timed("short", test_short);
    timed("strided", test_strided);
}
