# SPDX-License-Identifier: MIT
# What `cmake --install` gives. The man page and the completions come from the program's own option tables.
install(TARGETS nalagen RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS nalagen_static nalagen_shared
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/nalagen.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})

# The prefix as seen from the file, so that the tree can be moved.
file(RELATIVE_PATH NL_PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/nalagen.pc.in nalagen.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/nalagen.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(DIRECTORY weights/shipped/ DESTINATION ${CMAKE_INSTALL_DATADIR}/nalagen
    FILES_MATCHING PATTERN "*.safetensors" PATTERN "MODEL_CARD.md")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)

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
    install(FILES ${generated}/nalagen.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(FILES ${generated}/nalagen.bash RENAME nalagen
        DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
    install(FILES ${generated}/_nalagen DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
    install(FILES ${generated}/nalagen.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
