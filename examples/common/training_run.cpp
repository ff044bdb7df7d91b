#include <cmath>
#include <cstdio>
#include <regard/autograd/matmul_precision.hpp>
#include <regard/autograd/threads.hpp>
#include <regard/examples/common/options.hpp>
#include <regard/examples/common/resume.hpp>
#include <regard/examples/common/training_run.hpp>
#include <regard/examples/common/utf8.hpp>

namespace examples {

void add_precision(Options& line, std::string& precision) {
  line.choice("precision", precision, {"f32", "tf32", "bf16"},
              "what matrix products are computed in; bf16 takes less time on graphics cards and processors that have "
              "it, and rounds what is multiplied to three digits; tf32, on graphics cards alone, to four; weights, "
              "gradients and all else stay f32");
}

void use_precision(const std::string& precision) {
  using regard::MatmulPrecision;
  if (precision != "f32" && precision != "tf32" && precision != "bf16")
    throw UsageError("precision", in_quotes(precision) + " is not f32, tf32 or bf16");
  regard::set_matmul_precision(precision == "bf16"   ? MatmulPrecision::bf16
                               : precision == "tf32" ? MatmulPrecision::tf32
                                                     : MatmulPrecision::f32);
}

void introduce_results(std::ostream& out, const RunFolder& folder, int64_t step, regard::Device device) {
  const bool on_cpu = device == regard::cpu();
  out << "computing " << (on_cpu ? regard::cpu_report() : "on " + to_string(device)) << "\n";
  switch (regard::matmul_precision()) {
    case regard::MatmulPrecision::f32:
      break;
    case regard::MatmulPrecision::tf32:
      out << "precision "
          << (on_cpu ? "f32: tf32 is for graphics cards\n" : "matrix products in tf32, all else in f32\n");
      break;
    case regard::MatmulPrecision::bf16:
      out << "precision "
          << (!on_cpu || regard::bf16_matmul_available() ? "matrix products in bf16, all else in f32\n"
                                                         : "f32: this processor has no fast products in bf16\n");
      break;
  }
  out << "results   " << folder.path.string() << "\n";
  if (folder.moved_earlier) out << "          (an earlier run's are now " << folder.moved_earlier->string() << ")\n";
  if (step > 0) out << "          going on behind step " << step << "\n";
}

std::optional<std::string> divergence(int64_t step, double loss, double grad_norm, double lr) {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return std::nullopt;
  const bool is_loss = !std::isfinite(loss);
  return "training diverged: the " + std::string(is_loss ? "loss" : "gradient's norm") + " of step " +
         std::to_string(step) + " is " +
         with_finite_numbers(nlohmann::ordered_json(is_loss ? loss : grad_norm)).get<std::string>() +
         " (learning rate " + nlohmann::json(lr).dump() + "); a lower --lr may help";
}

void add_point(const nlohmann::ordered_json& line, const char* key, std::vector<double>& steps,
               std::vector<double>& values) {
  if (!line.contains(key) || !line.at(key).is_number()) return;
  steps.push_back(line.at("step").get<double>());
  values.push_back(line.at(key).get<double>());
}

int report_divergence(std::string_view program, const std::string& why, const std::filesystem::path& folder) {
  std::fprintf(stderr, "%.*s: %s; what there is of it is in %s\n", static_cast<int>(program.size()), program.data(),
               why.c_str(), folder.c_str());
  return 1;
}

int report_stop(std::string_view program, const StopSignals& stop, int64_t step, const std::filesystem::path& folder) {
  std::fprintf(stderr, "%.*s: stopped by %s behind step %lld; go on with --resume %s\n",
               static_cast<int>(program.size()), program.data(), stop.name().c_str(), static_cast<long long>(step),
               folder.c_str());
  return stop.exit_status();
}

regard::optim::CheckpointInfo latest_to_resume(const regard::optim::Checkpoints& checkpoints) {
  const auto latest = checkpoints.latest();
  if (!latest)
    throw UsageError("resume",
                     checkpoints.folder().string() + ": there is no checkpoint in it that is whole; start another run");
  return *latest;
}

void check_more_steps(int64_t steps, int64_t taken, const std::filesystem::path& folder) {
  if (taken > steps || (taken == steps && has_results(folder, taken)))
    throw UsageError("steps",
                     folder.string() + " has taken " + std::to_string(taken) + " steps already; give more to go on");
}

void check_decay(int64_t steps, int64_t warmup, int64_t decay_steps) {
  if (warmup >= decay_steps)
    throw UsageError("warmup", std::to_string(warmup) + " is not below the step at which the learning rate " +
                                   "arrives at zero, " + std::to_string(decay_steps));
  if (steps > decay_steps)
    throw UsageError("steps", std::to_string(steps) + " goes beyond --decay-steps, " + std::to_string(decay_steps) +
                                  ", where the learning rate is zero; a run that is to go on for longer begins with " +
                                  "a larger --decay-steps");
}

}  // namespace examples
