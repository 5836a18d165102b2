// Reads nvdisasm's listing: `nvdisasm -c FILE.cubin`, with `-g` for source lines.

#include <cctype>
#include <cstdlib>
#include <fstream>

#include "code.h"

namespace cudasim::device_code {

namespace {

using Labels = std::map<std::string, uint32_t>;

std::string trimmed(const std::string& text) {
    size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
    return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// Whether `text` has digits from `at` on, and nothing else.
bool is_number_behind(const std::string& text, size_t at) {
    return text.size() > at && text.find_first_not_of("0123456789", at) == std::string::npos;
}

/// R12, RZ, UR4, URZ, P3, PT, UP1, UPT, PR, B2.
bool read_register(const std::string& name, Operand& operand) {
    auto is = [&](Kind kind, size_t digits, uint16_t none, char none_letter) {
        if (name.size() == digits + 1 && name[digits] == none_letter) {
            operand.index = none;
        } else if (is_number_behind(name, digits)) {
            operand.index = uint16_t(atoi(name.c_str() + digits));
        } else {
            return false;
        }
        operand.kind = kind;
        return true;
    };
    if (name == "PR") {
        operand.kind = Kind::preds;
        return true;
    }
    if (name.starts_with("UR")) return is(Kind::uniform, 2, kZero, 'Z');
    if (name.starts_with("UP")) return is(Kind::upred, 2, kTrue, 'T');
    if (name.starts_with("R")) return is(Kind::reg, 1, kZero, 'Z');
    if (name.starts_with("P")) return is(Kind::pred, 1, kTrue, 'T');
    if (name.starts_with("B")) return is(Kind::barrier, 1, kZero, 0);
    return false;
}

/// The suffixes of a register, behind points: .64, .H1_H1, .B2, .reuse.
void read_suffix(const std::string& suffix, Operand& operand) {
    if (suffix == "reuse") return;
    if (suffix == "64") {
        operand.wide = true;
    } else if (suffix == "U32" || suffix == "X4" || suffix == "X8" || suffix == "X16") {
        throw Unsupported("the operand's suffix " + suffix);
    } else if (suffix.size() >= 2 && suffix[0] == 'H') {
        if (suffix == "H1_H0") return;  // both halves as they are
        operand.half = suffix[1] == '1';
    } else if (suffix.size() == 2 && suffix[0] == 'B') {
        operand.part = suffix[1] - '0';
    } else {
        throw Unsupported("the operand's suffix " + suffix);
    }
}

/// `text` up to the first point is a register; the rest are suffixes.
bool read_register_and_suffixes(const std::string& text, Operand& operand) {
    size_t point = text.find('.');
    if (!read_register(text.substr(0, point), operand)) return false;
    while (point != std::string::npos) {
        size_t next = text.find('.', point + 1);
        read_suffix(text.substr(point + 1, next - point - 1), operand);
        point = next;
    }
    return true;
}

/// The terms of an address, `R4.64+UR8+0x10` or `R4+-0x10`.
void read_terms(const std::string& text, Operand& operand) {
    operand.index = kZero;
    for (size_t begin = 0; begin <= text.size();) {
        size_t end = text.find('+', begin);
        if (end == std::string::npos) end = text.size();
        std::string term = text.substr(begin, end - begin);
        Operand part;
        if (read_register_and_suffixes(term, part)) {
            if (part.kind == Kind::uniform) {
                operand.uniform = part.index;
            } else {
                operand.index = part.index;
            }
            operand.wide |= part.wide;
        } else {
            operand.value += strtoll(term.c_str(), nullptr, 0);
        }
        begin = end + 1;
    }
}

Special special_of(const std::string& name) {
    static const std::map<std::string, Special> names = {
        {"SR_TID.X", Special::tid_x},     {"SR_TID.Y", Special::tid_y},
        {"SR_TID.Z", Special::tid_z},     {"SR_CTAID.X", Special::ctaid_x},
        {"SR_CTAID.Y", Special::ctaid_y}, {"SR_CTAID.Z", Special::ctaid_z},
        {"SR_LANEID", Special::laneid},   {"SRZ", Special::zero},
    };
    auto found = names.find(name);
    if (found == names.end()) throw Unsupported("the special register " + name);
    return found->second;
}

Operand parse_operand(std::string text, const Instruction& instruction, const Labels& labels) {
    Operand operand;
    if (text.starts_with("`(")) {
        operand.kind = Kind::label;
        auto found = labels.find(text.substr(2, text.find(')') - 2));
        operand.value = found == labels.end() ? -1 : int64_t(found->second);
        return operand;
    }
    if (text.starts_with("desc[")) text = text.substr(text.find("][") + 1);
    if (text.starts_with("[")) {
        operand.kind = Kind::memory;
        read_terms(text.substr(1, text.size() - 2), operand);
        return operand;
    }
    if (text.starts_with("SR")) {
        operand.kind = Kind::special;
        operand.index = uint16_t(special_of(text));
        return operand;
    }
    size_t sign = 0;
    for (; sign < text.size() && std::string_view("!~-|+").find(text[sign]) != std::string_view::npos; sign++) {
        operand.inverted |= text[sign] == '!' || text[sign] == '~';
        operand.negative |= text[sign] == '-';
        operand.absolute |= text[sign] == '|';
    }
    std::string name = text.substr(sign);
    if (size_t bar = name.find('|'); bar != std::string::npos) name.erase(bar, 1);
    if (name.starts_with("c[")) {
        operand.kind = Kind::constant;
        operand.bank = uint8_t(strtoul(name.c_str() + 2, nullptr, 0));
        size_t open = name.find("][");
        if (open == std::string::npos) throw Unsupported("the operand " + text);
        read_terms(name.substr(open + 2, name.find(']', open + 2) - open - 2), operand);
        return operand;
    }
    if (read_register_and_suffixes(name, operand)) return operand;
    bool is_number = isdigit((unsigned char)name[0]) || name.starts_with("INF") || name.starts_with("QNAN") ||
                     name.starts_with("SNAN");
    if (!is_number) throw Unsupported("the operand " + text);
    // A float's bits are in the instruction; its text may be rounded.
    operand = {.kind = Kind::immediate, .bits = uint32_t(instruction.low >> 32)};
    operand.value = text[0] == '-' ? strtoll(text.c_str(), nullptr, 0)
                                   : int64_t(strtoull(text.c_str(), nullptr, 0));
    return operand;
}

/// Splits at commas outside of brackets.
std::vector<std::string> operands_of(const std::string& text) {
    std::vector<std::string> parts;
    int depth = 0;
    std::string part;
    for (char c : text) {
        depth += c == '[' || c == '(';
        depth -= c == ']' || c == ')';
        if (c == ',' && !depth) {
            parts.push_back(trimmed(part));
            part.clear();
        } else {
            part += c;
        }
    }
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
    return parts;
}

/// Takes the first word off.
std::string take_word(std::string& text) {
    size_t space = text.find(' ');
    std::string word = text.substr(0, space);
    text = space == std::string::npos ? "" : trimmed(text.substr(space));
    return word;
}

}  // namespace

Instruction parse(const std::string& text, uint64_t low, uint64_t high, const Labels& labels) {
    Instruction instruction;
    instruction.low = low;
    instruction.high = high;
    instruction.text = text;
    instruction.stall = high >> 41 & 15;
    instruction.sets_on_write = high >> 46 & 7;
    instruction.sets_on_read = high >> 49 & 7;
    instruction.waits_for = high >> 52 & 63;
    std::string rest = text.substr(0, text.find("(*"));  // a note on where a jump leads
    rest = trimmed(rest);
    try {
        if (rest.starts_with("@")) {
            std::string guard = take_word(rest).substr(1);
            Operand predicate;
            instruction.guard_inverted = guard.starts_with("!");
            if (!read_register(guard.substr(instruction.guard_inverted), predicate)) throw Unsupported("the guard " + guard);
            instruction.guard = uint8_t(predicate.index);
            instruction.guard_uniform = predicate.kind == Kind::upred;
        }
        std::string opcode = take_word(rest);
        // The second operand of these is a word of its own.
        if ((opcode.starts_with("BRX") || opcode.starts_with("RET")) && rest.find(' ') != std::string::npos)
            rest[rest.find(' ')] = ',';
        find_opcode(instruction, opcode);
        auto parts = operands_of(rest);
        if (parts.size() > std::size(instruction.operands)) throw Unsupported("this many operands");
        for (auto& part : parts)
            instruction.operands[instruction.num_operands++] = parse_operand(part, instruction, labels);
    } catch (Unsupported& error) {
        instruction.run = nullptr;
        instruction.why_not = error.what();
    }
    return instruction;
}

void read_listing(const std::string& path, Image& image) {
    std::ifstream file(path);
    if (!file) throw Unsupported(path + ": no listing there (nvdisasm -c FILE.cubin)");
    struct Line {
        std::string text, source;
    };
    std::map<std::string, std::vector<Line>> lines;
    std::vector<Line>* listed = nullptr;
    Labels* labels = nullptr;
    std::string source;
    bool has_source = false;
    for (std::string line; getline(file, line);) {
        constexpr std::string_view kSection = ".section\t.text.", kSource = "//## File \"";
        if (size_t at = line.find(kSection); at != std::string::npos) {
            std::string name = line.substr(at + kSection.size());
            name = name.substr(0, name.find(','));
            auto kernel = image.kernels.find(name);
            if (kernel == image.kernels.end()) throw Unsupported(path + " lists " + name + ", which the cubin has not");
            listed = &lines[name];
            labels = &kernel->second.labels;
            source.clear();
            has_source = false;
        } else if (!listed) {
            continue;
        } else if (size_t at = line.find(kSource); at != std::string::npos) {
            // The first is that of the innermost of inlined functions.
            if (!has_source) {
                std::string name = line.substr(at + kSource.size());
                size_t quote = name.find('"'), number = name.find("line ", quote);
                size_t folder = name.rfind('/', quote) + 1;
                source = name.substr(folder, quote - folder) + ":" + std::to_string(atoi(name.c_str() + number + 5));
            }
            has_source = true;
        } else if (line.size() > 1 && line.back() == ':' && !isspace((unsigned char)line[0])) {
            (*labels)[line.substr(0, line.size() - 1)] = uint32_t(listed->size());
        } else if (size_t open = line.find("/*"), end = line.find(';');
                   open != std::string::npos && end != std::string::npos && isxdigit((unsigned char)line[open + 2])) {
            size_t close = line.find("*/", open);
            if (strtoul(line.c_str() + open + 2, nullptr, 16) != 16 * listed->size())
                throw Unsupported(path + ": instructions are missing before " + line);
            listed->push_back({trimmed(line.substr(close + 2, end - close - 2)), source});
            has_source = false;
        }
    }
    for (auto& [name, kernel] : image.kernels) {
        auto& listed = lines[name];
        if (listed.size() != kernel.code.size()) throw Unsupported(path + " is not the listing of this cubin: " + name);
        for (uint32_t i = 0; i < listed.size(); i++) {
            auto& bits = kernel.code[i];
            Instruction instruction = parse(listed[i].text, bits.low, bits.high, kernel.labels);
            instruction.at = i;
            instruction.line = listed[i].source;
            kernel.has_barriers |= listed[i].text.find("BAR.") != std::string::npos;
            bits = std::move(instruction);
        }
        kernel.executed.resize(kernel.code.size());
        kernel.lanes.resize(kernel.code.size());
    }
}

}  // namespace cudasim::device_code
