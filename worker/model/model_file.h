// Reads files in the folder of a model or an adapter. Only regular files up to a size limit are
// read (symbolic links are followed), because reading a pipe or a device could block or never end.
//
// Thread safety: pure functions of the files' contents. Error messages name the file.
#ifndef HEARTH_WORKER_MODEL_MODEL_FILE_H_
#define HEARTH_WORKER_MODEL_MODEL_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace hearth {

// Gemma 3's largest JSON file, tokenizer_config.json, has 1.2 MB.
inline constexpr size_t kMaxJsonFileBytes = size_t{16} << 20;

// Opens a file for reading and returns its descriptor. kNotFound: the file does not exist;
// kInvalidArgument: it is not a regular file.
absl::StatusOr<int> OpenModelFile(const std::string& path);
// Reads exactly `bytes` bytes at `offset`. Returns false if the read fails or the file is too
// short.
bool ReadAt(int fd, uint64_t offset, size_t bytes, void* to);
// Returns the file's contents. kResourceExhausted: the file is larger than `max_bytes`.
absl::StatusOr<std::string> ReadModelFile(const std::string& path, size_t max_bytes);

// Writes a file in a cache folder; creates the folder if necessary. Errors are ignored; the file is
// then missing. The call always creates a new file and renames it to `path`, so it replaces a
// symbolic link at `path` and cannot write outside the folder. The mode is 0644 minus the umask.
void WriteCacheFile(const std::string& path, absl::string_view text);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_FILE_H_
