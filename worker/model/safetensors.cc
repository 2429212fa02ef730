#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "worker/model/gguf.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/model/tensor_files.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

// A header lists names and shapes; that of Gemma 3 27B has less than 200 KB. The format allows 100
// MB, and parsing such a header would take 1 GB of memory.
constexpr uint64_t kMaxHeaderBytes = uint64_t{8} << 20;
constexpr size_t kMaxRank = 8;

absl::Status Bad(const std::string& file, const std::string& what) {
  return absl::DataLossError(absl::StrCat(file, ": ", what));
}

std::optional<ElementType> TypeFromText(const std::string& text) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kFloat16, ElementType::kBFloat16}) {
    if (text == FormOf(type).name) return type;
  }
  return std::nullopt;
}

// Fills `view` from the header entry of one tensor. `data_begin`: offset of the file's data
// section.
absl::Status ParseEntry(const Json& entry, uint64_t data_begin, uint64_t data_bytes,
                        TensorView* view) {
  const std::string tensor = absl::StrCat("tensor ", view->name, ": ");
  if (!entry.is_object()) return Bad(view->file, tensor + "its entry must be an object");
  const Json& dtype = JsonAt(entry, {"dtype"});
  const Json& shape = JsonAt(entry, {"shape"});
  const Json& offsets = JsonAt(entry, {"data_offsets"});
  if (!dtype.is_string() || !shape.is_array() || shape.size() > kMaxRank || !offsets.is_array() ||
      offsets.size() != 2 || !offsets[0].is_number_unsigned() || !offsets[1].is_number_unsigned()) {
    return Bad(view->file, tensor + "dtype, shape or data_offsets is missing or malformed");
  }
  view->dtype_text = dtype.get<std::string>();
  view->type = TypeFromText(view->dtype_text);
  uint64_t elements = 1;
  for (const Json& size : shape) {
    if (!size.is_number_unsigned()) return Bad(view->file, tensor + "shape is malformed");
    const uint64_t value = size.get<uint64_t>();
    if (value > INT64_MAX || __builtin_mul_overflow(elements, value, &elements)) {
      return Bad(view->file, tensor + "shape is too large");
    }
    view->shape.push_back(static_cast<int64_t>(value));
  }
  const uint64_t begin = offsets[0].get<uint64_t>(), end = offsets[1].get<uint64_t>();
  if (begin > end || end > data_bytes) {
    return Bad(view->file, absl::StrCat(tensor, "data_offsets [", begin, ", ", end,
                                        ") lie outside the file's ", data_bytes, " data bytes"));
  }
  const uint64_t element_bytes = view->type.has_value() ? ElementBytes(*view->type) : 0;
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes) ||
      (element_bytes != 0 && bytes != end - begin)) {
    return Bad(view->file, absl::StrCat(tensor, end - begin, " bytes do not match shape ",
                                        view->ShapeText(), " of dtype ", view->dtype_text));
  }
  view->offset = data_begin + begin;
  view->bytes = end - begin;
  return absl::OkStatus();
}

// Checks that the tensors exactly fill the data section: no overlap, no gap, no unused bytes.
absl::Status CheckCoverage(const std::string& file, uint64_t data_begin, uint64_t data_bytes,
                           std::vector<const TensorView*> views) {
  std::sort(views.begin(), views.end(), [](const TensorView* a, const TensorView* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  uint64_t end = data_begin;
  std::string before = "the header";
  for (const TensorView* view : views) {
    if (view->offset != end) {
      const char* what = view->offset < end ? " overlaps " : " leaves a gap after ";
      return Bad(file, absl::StrCat("tensor ", view->name, what, before));
    }
    end = view->offset + view->bytes;
    before = absl::StrCat("tensor ", view->name);
  }
  const uint64_t rest = data_begin + data_bytes - end;
  if (rest > 0) return Bad(file, absl::StrCat(rest, " bytes after ", before, " are unused"));
  return absl::OkStatus();
}

absl::StatusOr<Json> ParseHeader(const std::string& file, const std::string& text) {
  absl::StatusOr<Json> header = ParseModelJson(text);
  if (!header.ok()) return Bad(file, absl::StrCat("header ", header.status().message()));
  if (!header->is_object()) return Bad(file, "header is not a JSON object");
  return header;
}

// Returns the file names in an index (model.safetensors.index.json). The tensor names in the index
// are ignored, because the header of each file lists its tensors.
absl::StatusOr<std::set<std::string>> ReadIndex(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadModelFile(path, kMaxJsonFileBytes);
  if (!text.ok()) return text.status();
  const absl::StatusOr<Json> json = ParseModelJson(*text);
  if (!json.ok()) return Bad(path, absl::StrCat("has no weight_map: ", json.status().message()));
  const Json& map = JsonAt(*json, {"weight_map"});
  if (!map.is_object() || map.empty()) return Bad(path, "has no weight_map");
  std::set<std::string> files;
  for (const auto& [tensor, file] : map.items()) {
    const auto* name = file.get_ptr<const std::string*>();
    // The name must have no slash, so that an index cannot refer to files outside its folder.
    if (name == nullptr || name->empty() || name->find('/') != std::string::npos) {
      return Bad(path, absl::StrCat("weight_map of ", tensor, " is not a file name"));
    }
    files.insert(*name);
  }
  return files;
}

// For a folder without an index: returns the names of all files of a sharded checkpoint
// ("model-00001-of-00002.safetensors"), as implied by the first file that is found. Returns an
// empty set if the folder has no such file.
absl::StatusOr<std::set<std::string>> ListParts(const std::string& folder) {
  std::set<std::string> files;
  std::error_code failed;
  for (std::filesystem::directory_iterator at(folder, failed), end; !failed && at != end;
       at.increment(failed)) {
    const std::string name = at->path().filename().string();
    const std::vector<std::string> words = absl::StrSplit(name, absl::ByAnyChar("-."));
    int parts = 0;
    if (words.size() != 5 || words[0] != "model" || words[2] != "of" || words[3].size() != 5 ||
        words[4] != "safetensors" || !absl::SimpleAtoi(words[3], &parts) || parts < 1) {
      continue;
    }
    const bool is_first = files.empty();
    for (int part = 1; is_first && part <= parts; ++part)
      files.insert(absl::StrCat("model-", absl::Dec(part, absl::kZeroPad5), "-of-", words[3],
                                ".safetensors"));
    if (files.count(name) == 0)
      return Bad(absl::StrCat(folder, "/", name),
                 absl::StrCat("is part of another checkpoint than ", *files.begin(),
                              "; remove one of the two checkpoints"));
  }
  return files;
}

}  // namespace

int64_t TensorView::elements() const {
  int64_t product = 1;
  for (int64_t size : shape) product *= size;
  return product;
}

std::string TensorView::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

TensorFile::~TensorFile() {
  if (fd >= 0) close(fd);
}

absl::Status TensorFiles::Add(const std::string& path) {
  const absl::StatusOr<int> fd = OpenModelFile(path);
  if (!fd.ok()) return fd.status();
  auto opened = std::make_shared<TensorFile>();
  opened->path = path;
  opened->fd = *fd;
  uint64_t header_bytes = 0;
  if (fstat(*fd, &opened->opened) != 0 || !ReadAt(*fd, 0, sizeof(header_bytes), &header_bytes)) {
    return Bad(path, "is too short for a safetensors file");
  }
  const uint64_t rest = static_cast<uint64_t>(opened->opened.st_size) - sizeof(header_bytes);
  std::string text;
  if (header_bytes <= std::min(kMaxHeaderBytes, rest)) text.resize(header_bytes);
  if (text.size() != header_bytes || !ReadAt(*fd, sizeof(header_bytes), text.size(), text.data())) {
    return Bad(path, absl::StrCat("header of ", header_bytes, " bytes exceeds the file, or the ",
                                  kMaxHeaderBytes, "-byte limit: truncated, or not safetensors"));
  }
  const absl::StatusOr<Json> header = ParseHeader(path, text);
  if (!header.ok()) return header.status();
  const uint64_t data_begin = sizeof(header_bytes) + header_bytes, data_bytes = rest - header_bytes;
  std::vector<const TensorView*> views;
  for (const auto& [name, entry] : header->items()) {
    if (name == "__metadata__") continue;
    TensorView view;
    view.name = name;
    view.file = path;
    view.fd = *fd;
    if (absl::Status s = ParseEntry(entry, data_begin, data_bytes, &view); !s.ok()) return s;
    auto [it, added] = tensors_.emplace(name, std::move(view));
    if (!added) {
      return Bad(path, absl::StrCat("tensor ", name, " is also in ", it->second.file));
    }
    views.push_back(&it->second);
  }
  files_.push_back(std::move(opened));
  return CheckCoverage(path, data_begin, data_bytes, std::move(views));
}

absl::StatusOr<TensorFiles> TensorFiles::OpenFile(const std::string& path) {
  TensorFiles result;
  if (absl::Status s = result.Add(path); !s.ok()) return s;
  return result;
}

absl::Status CheckDtype(const TensorView& tensor) {
  if (tensor.type.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(tensor.file, ": tensor ", tensor.name,
                                                 " has dtype ", tensor.dtype_text,
                                                 "; supported are F32, F16 and BF16, and in GGUF "
                                                 "files also Q8_0, Q4_0 to Q5_1, Q4_K to Q6_K"));
}

absl::StatusOr<TensorFiles> TensorFiles::Open(const std::string& model_dir) {
  if (IsGgufFile(model_dir)) {
    const absl::StatusOr<GgufHeader> header = ReadGgufHeader(model_dir, /*with_vocabulary=*/false);
    if (!header.ok()) return header.status();
    TensorFiles result;
    for (const TensorView& view : header->tensors) result.tensors_.emplace(view.name, view);
    result.files_.push_back(header->file);
    return result;
  }
  const std::string single = absl::StrCat(model_dir, "/model.safetensors");
  const std::string index = absl::StrCat(model_dir, "/model.safetensors.index.json");
  // If both exist, the single file wins, as in transformers.
  if (access(single.c_str(), F_OK) == 0) return OpenFile(single);
  const bool has_index = access(index.c_str(), F_OK) == 0;
  const absl::StatusOr<std::set<std::string>> parts =
      has_index ? ReadIndex(index) : ListParts(model_dir);
  if (!parts.ok()) return parts.status();
  if (!has_index && parts->empty()) {
    return absl::NotFoundError(
        absl::StrCat(model_dir,
                     ": has neither model.safetensors, nor model.safetensors.index.json, nor parts "
                     "(model-00001-of-00002.safetensors)"));
  }
  TensorFiles result;
  for (const std::string& part : *parts) {
    if (absl::Status s = result.Add(absl::StrCat(model_dir, "/", part)); !s.ok()) {
      return absl::Status(s.code(), absl::StrCat(s.message(), " (", has_index ? index : model_dir,
                                                 has_index ? " lists this file)"
                                                           : " has other parts of the model)"));
    }
  }
  return result;
}

}  // namespace hearth
