#pragma once

#include <filesystem>
#include <ostream>
#include <regard/examples/common/classifier_training.hpp>
#include <string>
#include <vector>

namespace examples {

/// A line a class: how many texts it has, how many of those guessed to be of it are (precision), and how many of it are
/// guessed to be (recall); then the share of the most frequent class, which is what knowing nothing gives.
void show_classes(std::ostream& out, const std::vector<std::string>& labels, const std::vector<LabelledLine>& lines,
                  const Judgement& judgement);

/// Some texts whose class was guessed wrong.
void show_mistakes(std::ostream& out, const std::vector<std::string>& labels, const std::vector<LabelledLine>& lines,
                   const Judgement& judgement);

/// confusion.svg: for each class, how its texts were guessed.
void draw_confusion(const std::filesystem::path& path, const std::vector<std::string>& labels,
                    const std::vector<LabelledLine>& lines, const Judgement& judgement);

/// loss.svg: the loss on training and validation texts.
void draw_course(const std::filesystem::path& path, const std::string& title, const ClassifierCourse& course);

}  // namespace examples
