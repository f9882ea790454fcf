#include "memory/common/got_patch.h"

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace gpushare {
namespace {

#if defined(__x86_64__)
constexpr ElfW(Word) kJumpSlot = R_X86_64_JUMP_SLOT;
constexpr ElfW(Word) kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr ElfW(Word) kJumpSlot = R_AARCH64_JUMP_SLOT;
constexpr ElfW(Word) kGlobDat = R_AARCH64_GLOB_DAT;
#else
#error "imports are redirected on x86-64 and aarch64 only"
#endif

// The table in which a loaded library keeps the addresses of its imports.
struct Library {
  ElfW(Addr) base = 0;
  const ElfW(Dyn) * dynamic = nullptr;
  ElfW(Addr) relro_begin = 0;  // made read-only by the loader; whole pages
  ElfW(Addr) relro_end = 0;
};

struct Slot {
  void** address;
  const Redirection* redirection;
  bool bound;  // filled by the loader at start, not at the first call
};

ElfW(Addr) page_of(ElfW(Addr) address) {
  return address & ~(static_cast<ElfW(Addr)>(sysconf(_SC_PAGESIZE)) - 1);
}

std::string_view file_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

Library read_headers(const dl_phdr_info& info) {
  Library library;
  library.base = info.dlpi_addr;
  for (const auto& header : std::span(info.dlpi_phdr, info.dlpi_phnum)) {
    const ElfW(Addr) begin = info.dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_DYNAMIC) library.dynamic = reinterpret_cast<const ElfW(Dyn)*>(begin);
    if (header.p_type == PT_GNU_RELRO) {
      library.relro_begin = page_of(begin);
      library.relro_end = page_of(begin + header.p_memsz);
    }
  }
  return library;
}

struct Search {
  std::string_view name;
  Library found;
};

int compare_name(dl_phdr_info* info, size_t, void* argument) {
  auto* search = static_cast<Search*>(argument);
  if (file_name(info->dlpi_name) != search->name) return 0;
  search->found = read_headers(*info);
  return 1;
}

Library find_library(const char* name) {
  Search search{name, {}};
  dl_iterate_phdr(compare_name, &search);
  return search.found;
}

// The value of a dynamic entry. glibc has turned offsets into addresses, other loaders have not.
ElfW(Addr) dynamic_value(const Library& library, ElfW(Sxword) tag) {
  for (const ElfW(Dyn)* entry = library.dynamic; entry->d_tag != DT_NULL; ++entry) {
    if (entry->d_tag == tag) return entry->d_un.d_val;
  }
  return 0;
}

template <typename T>
const T* dynamic_table(const Library& library, ElfW(Sxword) tag) {
  const ElfW(Addr) value = dynamic_value(library, tag);
  if (value == 0) return nullptr;
  return reinterpret_cast<const T*>(value < library.base ? library.base + value : value);
}

std::span<const ElfW(Rela)> relocations(const Library& library, ElfW(Sxword) table,
                                        ElfW(Sxword) bytes) {
  const auto* first = dynamic_table<ElfW(Rela)>(library, table);
  if (first == nullptr) return {};
  return {first, dynamic_value(library, bytes) / sizeof(ElfW(Rela))};
}

const Redirection* named(std::span<const Redirection> redirections, std::string_view name) {
  for (const auto& redirection : redirections) {
    if (name == redirection.name) return &redirection;
  }
  return nullptr;
}

void collect_slots(const Library& library, std::span<const ElfW(Rela)> table,
                   std::span<const Redirection> redirections, std::vector<Slot>& slots) {
  const auto* symbols = dynamic_table<ElfW(Sym)>(library, DT_SYMTAB);
  const auto* strings = dynamic_table<char>(library, DT_STRTAB);
  for (const auto& relocation : table) {
    const auto type = ELF64_R_TYPE(relocation.r_info);
    if (type != kJumpSlot && type != kGlobDat) continue;
    const char* name = strings + symbols[ELF64_R_SYM(relocation.r_info)].st_name;
    if (const auto* redirection = named(redirections, name)) {
      auto** address = reinterpret_cast<void**>(library.base + relocation.r_offset);
      slots.push_back({address, redirection, type == kGlobDat});
    }
  }
}

// Memory from another allocator behind the library's imports must not be mixed with memory from
// the one behind ours.
std::string check(const char* library, std::span<const Redirection> redirections,
                  std::span<const Slot> slots) {
  for (const auto& redirection : redirections) {
    bool imported = false;
    for (const auto& slot : slots) {
      if (slot.redirection != &redirection) continue;
      imported = true;
      if (slot.bound && *slot.address != redirection.original) {
        return std::string(library) + " uses a " + redirection.name + " other than the process's";
      }
    }
    if (!imported) return std::string(library) + " does not import " + redirection.name;
  }
  return {};
}

bool protect(const Slot& slot, int protection) {
  const auto address = page_of(reinterpret_cast<ElfW(Addr)>(slot.address));
  const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));  // slots are aligned: one page
  return mprotect(reinterpret_cast<void*>(address), bytes, protection) == 0;
}

bool is_read_only(const Library& library, const Slot& slot) {
  const auto address = reinterpret_cast<ElfW(Addr)>(slot.address);
  return library.relro_begin <= address && address < library.relro_end;
}

bool write(const Library& library, const Slot& slot, void* value) {
  const bool read_only = is_read_only(library, slot);
  if (read_only && !protect(slot, PROT_READ | PROT_WRITE)) return false;
  __atomic_store_n(slot.address, value, __ATOMIC_RELEASE);
  return !read_only || protect(slot, PROT_READ);
}

std::string write_slots(const Library& library, std::span<const Slot> slots) {
  std::vector<void*> before;
  for (const auto& slot : slots) {
    before.push_back(*slot.address);
    if (write(library, slot, slot.redirection->replacement)) continue;
    std::string reason = std::string("its imports cannot be written: ") + std::strerror(errno);
    for (size_t i = 0; i < before.size(); ++i) write(library, slots[i], before[i]);
    return reason;
  }
  return {};
}

}  // namespace

std::string redirect_imports(const char* library_name, std::span<const Redirection> redirections) {
  const Library library = find_library(library_name);
  if (library.dynamic == nullptr) return std::string(library_name) + " is not loaded";
  std::vector<Slot> slots;
  collect_slots(library, relocations(library, DT_RELA, DT_RELASZ), redirections, slots);
  collect_slots(library, relocations(library, DT_JMPREL, DT_PLTRELSZ), redirections, slots);
  std::string reason = check(library_name, redirections, slots);
  return reason.empty() ? write_slots(library, slots) : reason;
}

}  // namespace gpushare
