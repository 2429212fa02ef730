// Reads files of a model's or an adapter's folder: regular files only, following links, up to a
// size limit. A pipe or a device could block a read forever, or never end.
//
// Thread safety: pure functions of the files' contents. Errors name the file.
#ifndef HEARTH_WORKER_MODEL_MODEL_FILE_H_
#define HEARTH_WORKER_MODEL_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hearth {

// Gemma's largest JSON file, tokenizer_config.json, has 1.2 MB.
inline constexpr size_t kMaxJsonFileBytes = size_t{16} << 20;

// Returns a file descriptor open for reading. kNotFound: no such file; kInvalidArgument: not a
// regular file.
absl::StatusOr<int> OpenModelFile(const std::string& path);
// Reads `bytes` bytes; returns false if the read fails or the file is shorter.
bool ReadAt(int fd, uint64_t offset, size_t bytes, void* to);
// Returns the file's contents. kResourceExhausted: the file is larger than `max_bytes`.
absl::StatusOr<std::string> ReadModelFile(const std::string& path, size_t max_bytes);

// Writes a file of a cache folder, and creates the folder. Errors are ignored: the file is then
// missing. The file is always new, with mode 0644 less the umask: it replaces a link at `path`, so
// the write cannot leave the folder.
void WriteCacheFile(const std::string& path, absl::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_FILE_H_
