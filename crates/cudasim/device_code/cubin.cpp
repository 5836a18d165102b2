// Reads the kernels of a cubin: code, constants, parameters, registers.

#include <elf.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "code.h"

namespace cudasim::device_code {

// Attributes of the sections .nv.info: a format, an attribute, then 2 bytes of value or of size.
enum : uint8_t { kHasSize = 0x04 };
enum : uint8_t {
    kParamCbank = 0x0A,
    kFrameSize = 0x11,
    kMinStackSize = 0x12,
    kKparamInfo = 0x17,
    kRegCount = 0x2F,
    kKparamInfo2 = 0x45,
};

namespace {

struct Section {
    Elf64_Shdr head;
    std::string name;
};

class File {
  public:
    explicit File(const std::string& path) : path(path) {
        std::ifstream file(path, std::ios::binary);
        std::stringstream text;
        text << file.rdbuf();
        bytes = text.str();
        head = at<Elf64_Ehdr>(0);
        if (memcmp(head.e_ident, ELFMAG, SELFMAG) || head.e_machine != EM_CUDA)
            throw Unsupported(path + ": no cubin there");
        for (int i = 0; i < head.e_shnum; i++)
            sections.push_back({at<Elf64_Shdr>(head.e_shoff + i * sizeof(Elf64_Shdr)), {}});
        for (auto& section : sections)
            section.name = text_at(sections.at(head.e_shstrndx).head, section.head.sh_name);
    }

    template <class T>
    T at(size_t offset) const {
        T value;
        if (offset + sizeof value > bytes.size()) throw Unsupported(path + ": the cubin is cut off");
        memcpy(&value, bytes.data() + offset, sizeof value);
        return value;
    }
    std::string text_at(const Elf64_Shdr& table, size_t offset) const {
        return bytes.c_str() + std::min(bytes.size(), table.sh_offset + offset);
    }
    std::vector<char> contents(const Section& section) const {
        if (section.head.sh_type == SHT_NOBITS) return {};
        auto begin = bytes.begin() + section.head.sh_offset;
        return {begin, begin + section.head.sh_size};
    }

    std::string path, bytes;
    Elf64_Ehdr head;
    std::vector<Section> sections;
};

/// Calls `f(attribute, offset of its value, size)` for each attribute of a section.
template <class F>
void for_attributes(const File& file, const Section& section, const F& f) {
    size_t at = section.head.sh_offset, end = at + section.head.sh_size;
    while (at + 4 <= end) {
        auto format = file.at<uint8_t>(at), attribute = file.at<uint8_t>(at + 1);
        auto size = file.at<uint16_t>(at + 2);
        bool has_size = format == kHasSize;
        f(attribute, at + (has_size ? 4 : 2), has_size ? size : 2);
        at += 4 + (has_size ? size : 0);
    }
}

/// Reads the attributes of one kernel.
void read_kernel_info(const File& file, const Section& section, Kernel& kernel) {
    for_attributes(file, section, [&](uint8_t attribute, size_t at, size_t) {
        if (attribute == kParamCbank) {
            kernel.first_parameter = file.at<uint16_t>(at + 4);
            kernel.parameter_bytes = file.at<uint16_t>(at + 6);
        } else if (attribute == kKparamInfo || attribute == kKparamInfo2) {
            auto ordinal = file.at<uint16_t>(at + 4), offset = file.at<uint16_t>(at + 6);
            uint32_t bytes = attribute == kKparamInfo ? file.at<uint32_t>(at + 8) >> 18
                                                      : file.at<uint16_t>(at + 8);
            if (kernel.parameters.size() <= ordinal) kernel.parameters.resize(ordinal + 1);
            kernel.parameters[ordinal] = {offset, bytes};
        }
    });
}

}  // namespace

Image read_cubin(const std::string& path) {
    File file(path);
    Image image;
    image.arch = file.head.e_flags >> 8 & 0xFF;
    constexpr std::string_view kText = ".text.", kInfo = ".nv.info.", kConstant = ".nv.constant";
    constexpr std::string_view kShared = ".nv.shared.";
    for (auto& section : file.sections) {
        if (!section.name.starts_with(kText)) continue;
        auto& kernel = image.kernels[section.name.substr(kText.size())];
        kernel.name = section.name.substr(kText.size());
        kernel.code_bytes = section.head.sh_size;
        kernel.code.resize(kernel.code_bytes / 16);
        for (size_t i = 0; i < kernel.code.size(); i++) {
            kernel.code[i].low = file.at<uint64_t>(section.head.sh_offset + 16 * i);
            kernel.code[i].high = file.at<uint64_t>(section.head.sh_offset + 16 * i + 8);
        }
    }
    auto kernel_of = [&](const std::string& name) {
        auto found = image.kernels.find(name);
        return found == image.kernels.end() ? nullptr : &found->second;
    };
    const Section* symbols = nullptr;
    for (auto& section : file.sections) {
        if (section.head.sh_type == SHT_SYMTAB) symbols = &section;
        if (section.name.starts_with(kInfo)) {
            if (auto* kernel = kernel_of(section.name.substr(kInfo.size())))
                read_kernel_info(file, section, *kernel);
        } else if (section.name.starts_with(kConstant)) {
            size_t point = section.name.find('.', kConstant.size());
            if (point == std::string::npos) {
                for (auto& [name, kernel] : image.kernels)
                    kernel.constants[stoi(section.name.substr(kConstant.size()))] = file.contents(section);
            } else if (auto* kernel = kernel_of(section.name.substr(point + 1))) {
                kernel->constants[stoi(section.name.substr(kConstant.size()))] = file.contents(section);
            }
        } else if (section.name.starts_with(kShared)) {
            if (auto* kernel = kernel_of(section.name.substr(kShared.size())))
                kernel->shared_bytes = section.head.sh_size;
        }
    }
    if (!symbols) throw Unsupported(path + ": a cubin without symbols");
    auto name_of = [&](uint32_t symbol) {
        auto entry = file.at<Elf64_Sym>(symbols->head.sh_offset + symbol * sizeof(Elf64_Sym));
        return file.text_at(file.sections.at(symbols->head.sh_link).head, entry.st_name);
    };
    for (auto& section : file.sections) {
        if (section.name != ".nv.info") continue;
        for_attributes(file, section, [&](uint8_t attribute, size_t at, size_t size) {
            if (size != 8) return;
            auto* kernel = kernel_of(name_of(file.at<uint32_t>(at)));
            auto value = file.at<uint32_t>(at + 4);
            if (!kernel) return;
            if (attribute == kRegCount) kernel->registers = value;
            if (attribute == kFrameSize || attribute == kMinStackSize)
                kernel->frame_bytes = std::max(kernel->frame_bytes, value);
        });
    }
    return image;
}

}  // namespace cudasim::device_code
