// FoundDamage: what is damaged in a data folder, a line for each. Private to disk/. A plain
// value.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DAMAGE_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DAMAGE_H_

#include <string>
#include <utility>
#include <vector>

namespace hearth {

struct FoundDamage {
  std::vector<std::string> lines;
  std::vector<std::string> mended;  // of these what was put right: nothing is lost by it

  void Add(std::string line) { lines.push_back(std::move(line)); }
  void AddMended(std::string line) {
    mended.push_back(line);
    lines.push_back(std::move(line));
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DAMAGE_H_
