# Finds BLIS (https://github.com/flame/blis), which brings neither a CMake nor a pkg-config file, and makes the
# target BLIS::BLIS. A folder of one's own: -DBLIS_ROOT=... . Which threading variant it is does not matter to
# Regard: the one the system has chosen is taken first, else any that is there.
find_path(BLIS_INCLUDE_DIR NAMES blis.h)
find_path(BLIS_INCLUDE_DIR NAMES blis.h PATH_SUFFIXES blis-openmp blis-pthread blis-serial blis)
find_library(BLIS_LIBRARY NAMES blis)
find_library(BLIS_LIBRARY NAMES blis blis-mt PATH_SUFFIXES blis-openmp blis-pthread blis-serial blis)
mark_as_advanced(BLIS_INCLUDE_DIR BLIS_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(BLIS REQUIRED_VARS BLIS_LIBRARY BLIS_INCLUDE_DIR
  REASON_FAILURE_MESSAGE "on Debian and Ubuntu: apt-get install libblis-dev, elsewhere set BLIS_ROOT")

if(BLIS_FOUND AND NOT TARGET BLIS::BLIS)
  add_library(BLIS::BLIS UNKNOWN IMPORTED)
  set_target_properties(BLIS::BLIS PROPERTIES
    IMPORTED_LOCATION "${BLIS_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${BLIS_INCLUDE_DIR}")
endif()
