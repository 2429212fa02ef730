#include "worker/model/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"

namespace hearth {
namespace {

using Json = nlohmann::json;

// A header lists names and shapes: 27B's is under 200 KB. The format's own limit is 100 MB.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxRank = 8;
constexpr size_t kLengthBytes = 8;  // the header's length, u64 little endian

absl::Status Bad(const std::string& file, const std::string& what) {
  return absl::DataLossError(absl::StrCat(file, ": ", what));
}

TensorDtype DtypeFromText(const std::string& text) {
  if (text == "F32") return TensorDtype::kFloat32;
  if (text == "F16") return TensorDtype::kFloat16;
  if (text == "BF16") return TensorDtype::kBFloat16;
  return TensorDtype::kOther;
}

// Fills `view` from one header entry; `data` is the file's data section.
absl::Status ParseEntry(const Json& entry, const std::byte* data, size_t data_bytes,
                        TensorView* view) {
  const std::string tensor = absl::StrCat("tensor ", view->name, ": ");
  if (!entry.is_object()) return Bad(view->file, tensor + "entry is not an object");
  const Json dtype = entry.value("dtype", Json());
  const Json shape = entry.value("shape", Json());
  const Json offsets = entry.value("data_offsets", Json());
  if (!dtype.is_string() || !shape.is_array() || shape.size() > kMaxRank || !offsets.is_array() ||
      offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return Bad(view->file, tensor + "dtype, shape or data_offsets is missing or malformed");
  }
  view->dtype_text = dtype.get<std::string>();
  view->dtype = DtypeFromText(view->dtype_text);
  uint64_t elements = 1;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) return Bad(view->file, tensor + "shape is malformed");
    const uint64_t value = size.get<uint64_t>();
    if (value > INT64_MAX || __builtin_mul_overflow(elements, value, &elements)) {
      return Bad(view->file, tensor + "shape overflows");
    }
    view->shape.push_back(static_cast<int64_t>(value));
  }
  const uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return Bad(view->file, absl::StrCat(tensor, "data_offsets [", begin, ", ", end,
                                        ") lie outside the file's ", data_bytes, " data bytes"));
  }
  const uint64_t element_bytes = TensorDtypeBytes(view->dtype);
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes) ||
      (element_bytes != 0 && bytes != end - begin)) {
    return Bad(view->file, absl::StrCat(tensor, end - begin, " bytes do not fit shape ",
                                        view->ShapeText(), " of ", view->dtype_text));
  }
  view->data = data + begin;
  view->bytes = end - begin;
  return absl::OkStatus();
}

// The tensors lie one after the other in the data section: no overlap, no hole, no rest.
absl::Status CheckCoverage(const std::string& file, const std::byte* data, size_t data_bytes,
                           std::vector<const TensorView*> views) {
  std::sort(views.begin(), views.end(), [](const TensorView* a, const TensorView* b) {
    return a->data != b->data ? a->data < b->data : a->bytes < b->bytes;
  });
  const std::byte* end = data;
  std::string before = "the header";
  for (const TensorView* view : views) {
    if (view->data != end) {
      const char* what = view->data < end ? " overlaps " : " leaves unnamed bytes after ";
      return Bad(file, absl::StrCat("tensor ", view->name, what, before));
    }
    end = view->data + view->bytes;
    before = absl::StrCat("tensor ", view->name);
  }
  const size_t rest = static_cast<size_t>(data + data_bytes - end);
  if (rest > 0) return Bad(file, absl::StrCat(rest, " bytes after ", before, " have no name"));
  return absl::OkStatus();
}

// The header as JSON. A name that comes twice would leave open which bytes are meant.
absl::StatusOr<Json> ParseHeader(const std::string& file, const char* text, size_t bytes) {
  std::set<std::string> names;
  std::string twice;
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (depth == 1 && event == Json::parse_event_t::key &&
        !names.insert(parsed.get<std::string>()).second) {
      twice = parsed.get<std::string>();
    }
    return true;
  };
  Json header = Json::parse(text, text + bytes, watch, /*allow_exceptions=*/false);
  if (!header.is_object()) return Bad(file, "header is not a JSON object");
  if (!twice.empty()) return Bad(file, absl::StrCat("header names tensor ", twice, " twice"));
  return header;
}

// The file that holds each tensor.
using WeightMap = std::map<std::string, std::string>;

absl::StatusOr<WeightMap> ReadIndex(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  const Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    return Bad(path, "has no weight_map");
  }
  WeightMap map;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    // A plain name: an index must not lead out of its folder.
    if (!file.is_string() || file.get<std::string>().empty() ||
        file.get<std::string>().find('/') != std::string::npos) {
      return Bad(path, absl::StrCat("weight_map of ", tensor, " is not a file name"));
    }
    map[tensor] = file.get<std::string>();
  }
  return map;
}

// Every tensor must be in the file that the index gives for it.
absl::Status CheckIndex(const std::string& model_dir, const std::string& index,
                        const WeightMap& map, const std::map<std::string, TensorView>& tensors) {
  for (const auto& [name, file] : map) {
    auto it = tensors.find(name);
    if (it == tensors.end() || it->second.file != absl::StrCat(model_dir, "/", file)) {
      return Bad(index, absl::StrCat("tensor ", name, " is not in ", file));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const char* TensorDtypeName(TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::kFloat32:
      return "F32";
    case TensorDtype::kFloat16:
      return "F16";
    case TensorDtype::kBFloat16:
      return "BF16";
    case TensorDtype::kOther:
      break;
  }
  return "other";
}

int TensorDtypeBytes(TensorDtype dtype) {
  switch (dtype) {
    case TensorDtype::kFloat32:
      return 4;
    case TensorDtype::kFloat16:
    case TensorDtype::kBFloat16:
      return 2;
    case TensorDtype::kOther:
      break;
  }
  return 0;
}

int64_t TensorView::elements() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

std::string TensorView::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

struct Safetensors::Mapping {
  std::byte* data = nullptr;
  size_t bytes = 0;
  ~Mapping() {
    if (data != nullptr) munmap(data, bytes);
  }
};

absl::Status Safetensors::Add(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  struct stat info {};
  const bool has_size = fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
  if (!has_size || info.st_size < static_cast<off_t>(kLengthBytes)) {
    close(fd);
    return Bad(path, "is too short for a safetensors file");
  }
  auto mapping = std::make_shared<Mapping>();
  const size_t size = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return Bad(path, "cannot be mapped into memory");
  mapping->data = static_cast<std::byte*>(memory);
  mapping->bytes = size;
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, mapping->data, kLengthBytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > size - kLengthBytes) {
    return Bad(path, absl::StrCat("header of ", header_bytes, " bytes does not fit the file: ",
                                  "truncated, or not safetensors"));
  }
  const char* text = reinterpret_cast<const char*>(mapping->data + kLengthBytes);
  const absl::StatusOr<Json> header = ParseHeader(path, text, header_bytes);
  if (!header.ok()) return header.status();
  const std::byte* data = mapping->data + kLengthBytes + header_bytes;
  const size_t data_bytes = size - kLengthBytes - header_bytes;
  std::vector<const TensorView*> views;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    TensorView view;
    view.name = name;
    view.file = path;
    if (absl::Status s = ParseEntry(entry, data, data_bytes, &view); !s.ok()) return s;
    auto [it, added] = tensors_.emplace(name, std::move(view));
    if (!added) {
      return Bad(path, absl::StrCat("tensor ", name, " is also in ", it->second.file));
    }
    views.push_back(&it->second);
  }
  mappings_.push_back(std::move(mapping));
  files_.push_back(path);
  return CheckCoverage(path, data, data_bytes, std::move(views));
}

absl::StatusOr<Safetensors> Safetensors::OpenFile(const std::string& path) {
  Safetensors result;
  if (absl::Status s = result.Add(path); !s.ok()) return s;
  return result;
}

absl::Status CheckDtype(const TensorView& tensor) {
  if (tensor.dtype != TensorDtype::kOther) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name,
                                                 " has dtype ", tensor.dtype_text,
                                                 "; F32, F16 and BF16 are supported"));
}

absl::StatusOr<Safetensors> Safetensors::Open(const std::string& model_dir) {
  const std::string single = absl::StrCat(model_dir, "/model.safetensors");
  const std::string index = absl::StrCat(model_dir, "/model.safetensors.index.json");
  // The single file wins where both lie, as in transformers.
  if (access(single.c_str(), F_OK) == 0) return OpenFile(single);
  if (access(index.c_str(), F_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(
        model_dir, ": has neither model.safetensors nor model.safetensors.index.json"));
  }
  const absl::StatusOr<WeightMap> map = ReadIndex(index);
  if (!map.ok()) return map.status();
  Safetensors result;
  std::set<std::string> added;
  for (const auto& [tensor, file] : *map) {
    if (!added.insert(file).second) continue;
    if (absl::Status s = result.Add(absl::StrCat(model_dir, "/", file)); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(s.message(), " (", index, " says that tensor ",
                                                 tensor, " is in it)"));
    }
  }
  if (absl::Status s = CheckIndex(model_dir, index, *map, result.tensors_); !s.ok()) return s;
  return result;
}

}  // namespace hearth
