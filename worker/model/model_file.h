// Reads the files of a model's or an adapter's folder: regular files only, after links, up to a
// limit. A pipe or a device would have no end, and nothing would stop the wait for it.
//
// Thread safety: pure functions of the files' contents. Errors name the file.
#ifndef HEARTH_WORKER_MODEL_MODEL_FILE_H_
#define HEARTH_WORKER_MODEL_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hearth {

// Gemma's largest, tokenizer_config.json, has 1.2 MB.
inline constexpr size_t kMaxJsonFileBytes = size_t{16} << 20;

// A descriptor, open for reading. kNotFound: not there; kInvalidArgument: no regular file.
absl::StatusOr<int> OpenModelFile(const std::string& path);
// Whether that many bytes could be read; a file may have been cut short.
bool ReadAt(int fd, uint64_t offset, size_t bytes, void* to);
// kResourceExhausted: the file is larger than `max_bytes`.
absl::StatusOr<std::string> ReadModelFile(const std::string& path, size_t max_bytes);

// Writes a file of a cache folder, and makes the folder. If the file cannot be written, it is left
// out. The file is a new one, of mode 0644 less the umask: a link in its place is replaced, and
// leads no write out of the folder.
void WriteCacheFile(const std::string& path, absl::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_FILE_H_
