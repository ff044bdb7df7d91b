// What the training programs share beside their loops: what they say, and when they refuse to go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/run_folder.hpp>
#include <regard/examples/common/stop_signals.hpp>
#include <regard/optim/checkpoint.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace examples {

/// The option --precision of a program that trains: f32, tf32 or bf16, what matrix products are computed in.
void add_precision(Options& line, std::string& precision);
/// Makes it so, for the whole program. Throws UsageError for another word, which a run's config.json may hold.
void use_precision(const std::string& precision);

/// The end of a run's introduction: what it computes on and with, and where its results go.
void introduce_results(std::ostream& out, const RunFolder& folder, int64_t step, regard::Device device);

/// "training diverged: the loss of step 7 is nan (learning rate 0.5); a lower --lr may help". Nothing where
/// loss and norm are finite.
std::optional<std::string> divergence(int64_t step, double loss, double grad_norm, double lr);

/// Adds the number that a line of metrics has under `key`, and its step, where it has one: a curve to draw.
void add_point(const nlohmann::ordered_json& line, const char* key, std::vector<double>& steps,
               std::vector<double>& values);

/// Tells on standard error why a run ended before its last step. Returns the program's exit status.
int report_divergence(std::string_view program, const std::string& why, const std::filesystem::path& folder);
int report_stop(std::string_view program, const StopSignals& stop, int64_t step, const std::filesystem::path& folder);

/// The checkpoint from which a run goes on. Throws UsageError for --resume where there is none.
regard::optim::CheckpointInfo latest_to_resume(const regard::optim::Checkpoints& checkpoints);
/// Throws UsageError for --steps unless there is something left to do: more steps than the run in `folder` has taken,
/// or as many, where it was ended before it wrote its results.
void check_more_steps(int64_t steps, int64_t taken, const std::filesystem::path& folder);

/// Throws UsageError for a --warmup that leaves nothing of --decay-steps, and for --steps that go beyond it.
void check_decay(int64_t steps, int64_t warmup, int64_t decay_steps);

}  // namespace examples
