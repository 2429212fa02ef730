// FileStamp: tells whether a file was written or replaced, by what the file system says of it.
//
// Plain functions. A file that is not there has a stamp, too.
#ifndef HEARTH_CACHE_STORE_BASE_FILE_STAMP_H_
#define HEARTH_CACHE_STORE_BASE_FILE_STAMP_H_

#include <string>

namespace hearth {

// Another text after each change.
std::string FileStampOf(const std::string& path);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_FILE_STAMP_H_
