// Draws hit rate against capacity: one line a policy, capacity on a log scale.
//
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_COMMANDS_HIT_RATE_PICTURE_H_
#define HEARTH_SERVICES_HEARTHCTL_COMMANDS_HIT_RATE_PICTURE_H_

#include <string>
#include <utility>
#include <vector>

namespace hearth {

struct HitRateLine {
  std::string policy;  // decides the style: default, lru, optimum
  std::string name;
  std::vector<std::pair<double, double>> points;  // capacity as a share, hit rate; ascending
};

struct HitRatePicture {
  std::string title, subtitle;
  std::string capacity_label, rate_label;  // below the axis, above the other
  std::vector<HitRateLine> lines;
};

// SVG text without any outside asset. REQUIRES: a line, each with a point; capacities above 0.
std::string DrawHitRates(const HitRatePicture& picture);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_COMMANDS_HIT_RATE_PICTURE_H_
