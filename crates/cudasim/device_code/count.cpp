// Numbers of a launch, and of a whole run.

#include "count.h"

#include <algorithm>
#include <map>

namespace cudasim::device_code {

void Touched::add(uint64_t address, uint32_t bytes) {
    for (uint64_t sector = address / 32; sector <= (address + bytes - 1) / 32; sector++) {
        // Neighbours come one after the other, as a rule.
        auto* end = sectors + num_sectors;
        if (std::find(std::make_reverse_iterator(end), std::make_reverse_iterator(sectors), sector).base() != sectors) continue;
        bool new_line = std::none_of(sectors, end, [&](uint64_t other) { return other / 4 == sector / 4; });
        num_lines += new_line;
        sectors[num_sectors++] = sector;
    }
}

void Counts::write(FILE* file, const Kernel& kernel, const std::string& more) const {
    auto number = [](uint64_t value) { return (unsigned long long)value; };
    fprintf(file, "{\"kernel\": \"%s\", %s, \"registers\": %u, \"code_bytes\": %u", kernel.name.c_str(), more.c_str(),
            kernel.registers, kernel.code_bytes);
    fprintf(file, ", \"instructions\": %llu, \"lanes\": %llu, \"few\": %llu, \"units\": {", number(instructions),
            number(lanes), number(few));
    for (size_t i = 0; i < std::size(unit_names); i++)
        fprintf(file, "%s\"%s\": %llu", i ? ", " : "", unit_names[i], number(units[i]));
    fprintf(file, "}");
    for (size_t i = 1; i < std::size(access_names); i++) {
        auto& of = accesses[i];
        fprintf(file, ", \"%s\": {\"requests\": %llu, \"sectors\": %llu, \"lines\": %llu, \"bytes\": %llu}", access_names[i],
                number(of.requests), number(of.sectors), number(of.lines), number(of.bytes));
    }
    fprintf(file, "}\n");
}

void write_coverage(const char* path, const Image& image) {
    FILE* file = fopen(path, "a");
    if (!file) return;
    for (auto& [name, kernel] : image.kernels) {
        for (auto& in : kernel.code) {
            // The padding at a kernel's end is never run.
            bool is_padding = in.text == "NOP" || (in.text.starts_with("BRA") && in.operands[0].value == in.at);
            if (is_padding) continue;
            fprintf(file, "%u %s %05x %llu %s\t%s\t%s\n", image.arch, name.c_str(), 16 * in.at,
                    (unsigned long long)kernel.executed[in.at], in.run ? "known" : "unknown", in.text.c_str(), in.line.c_str());
        }
    }
    fclose(file);
}

void write_lines(const char* path, const Image& image) {
    struct Line {
        uint64_t instructions = 0, lanes = 0;
    };
    std::map<std::string, Line> lines;
    for (auto& [name, kernel] : image.kernels) {
        for (auto& in : kernel.code) {
            lines[in.line].instructions += kernel.executed[in.at];
            lines[in.line].lanes += kernel.lanes[in.at];
        }
    }
    std::vector<std::pair<uint64_t, std::string>> order;
    for (auto& [name, line] : lines) {
        if (line.instructions) order.push_back({line.instructions, name});
    }
    std::sort(order.rbegin(), order.rend());
    FILE* file = fopen(path, "a");
    if (!file) return;
    for (auto& [count, name] : order)
        fprintf(file, "%12llu %5.1f %s\n", (unsigned long long)count, double(lines[name].lanes) / count, name.c_str());
    fclose(file);
}

}  // namespace cudasim::device_code
