// Owns a precompiled header: see lowtide_precompiled in the top CMakeLists.txt.
