# SPDX-License-Identifier: MIT
# What `cmake --install` gives, in the parts that packages are made of (package.cmake): program, library, development, data,
# python. The man page and the completions come from the program's own option tables.
install(TARGETS nalagen RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
install(TARGETS nalagen_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library
    NAMELINK_COMPONENT development)
install(TARGETS nalagen_static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES include/nalagen.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)

# The prefix as seen from the file, so that the tree can be moved.
file(RELATIVE_PATH NL_PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/nalagen.pc.in nalagen.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nalagen.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)

include(CMakePackageConfigHelpers)
configure_package_config_file(cmake/nalagenConfig.cmake.in ${CMAKE_BINARY_DIR}/nalagenConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nalagen
    PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/nalagenConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/nalagenConfig.cmake ${CMAKE_BINARY_DIR}/nalagenConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nalagen COMPONENT development)

install(DIRECTORY weights/shipped/ DESTINATION ${CMAKE_INSTALL_DATADIR}/nalagen COMPONENT data
    FILES_MATCHING PATTERN "*.safetensors" PATTERN "MODEL_CARD.md")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT data)
install(FILES NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT data OPTIONAL)

# Python's own files go where `pip install ./python` would put them; a system's Python is told where with NL_PYTHON_DIR.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
    set(NL_PYTHON_DIR lib/python3/dist-packages CACHE PATH "Where the Python package goes; empty: nowhere")
    set(zsh_completions zsh/vendor-completions)
else()
    set(NL_PYTHON_DIR "" CACHE PATH "Where the Python package goes; empty: nowhere")
    set(zsh_completions zsh/site-functions) # where zsh looks below /usr/local
endif()
if(NL_PYTHON_DIR)
    install(DIRECTORY python/nalagen DESTINATION ${NL_PYTHON_DIR} COMPONENT python
        FILES_MATCHING PATTERN "*.py" PATTERN "py.typed" PATTERN __pycache__ EXCLUDE)
endif()

if(NOT CMAKE_CROSSCOMPILING)
    set(generated ${CMAKE_BINARY_DIR}/generated)
    file(MAKE_DIRECTORY ${generated})
    add_custom_command(OUTPUT ${generated}/nalagen.1 ${generated}/nalagen.bash ${generated}/_nalagen
            ${generated}/nalagen.fish
        COMMAND nalagen generate-man > ${generated}/nalagen.1
        COMMAND nalagen completion bash > ${generated}/nalagen.bash
        COMMAND nalagen completion zsh > ${generated}/_nalagen
        COMMAND nalagen completion fish > ${generated}/nalagen.fish
        DEPENDS nalagen VERBATIM)
    add_custom_target(generated ALL DEPENDS ${generated}/nalagen.1)
    install(FILES ${generated}/nalagen.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT program)
    install(FILES ${generated}/nalagen.bash RENAME nalagen COMPONENT program
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${generated}/_nalagen DESTINATION ${CMAKE_INSTALL_DATADIR}/${zsh_completions} COMPONENT program)
    install(FILES ${generated}/nalagen.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
        COMPONENT program)
endif()
