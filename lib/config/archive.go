package config

import (
	"slices"
	"strings"

	"tendril.dev/lib/nip34"
)

// Archives reports whether repositories are archived that do not list this service (GRASP-05).
func (p Policy) Archives() bool {
	return p.ArchiveAll || len(p.ArchiveWhitelist) > 0 || len(p.ArchiveServices) > 0
}

// IsArchiveReadOnly reports whether pushes to archived repositories are refused. They are, unless
// NGIT_ARCHIVE_READ_ONLY says otherwise.
func (p Policy) IsArchiveReadOnly() bool { return p.ArchiveReadOnly == nil || *p.ArchiveReadOnly }

// archive checks what is archived. Settings that contradict each other stop the start: one of the
// two is not what the operator means.
func (s Settings) archive() error {
	if err := checkRepositories("NGIT_ARCHIVE_WHITELIST", s.ArchiveWhitelist); err != nil {
		return err
	}
	if s.ArchiveReadOnly != nil && *s.ArchiveReadOnly && !s.Archives() {
		return &Error{"NGIT_ARCHIVE_READ_ONLY", "true", "nothing is archived: want NGIT_ARCHIVE_ALL, NGIT_ARCHIVE_WHITELIST or NGIT_ARCHIVE_GRASP_SERVICES too, or unset it"}
	}
	for _, entry := range s.ArchiveWhitelist {
		if slices.Contains(s.RepositoryBlacklist, entry) {
			return &Error{"NGIT_ARCHIVE_WHITELIST", entry, "NGIT_REPOSITORY_BLACKLIST names it too, and that is never kept; take it out of one of the two"}
		}
	}
	return s.archivedServices()
}

func (s Settings) archivedServices() error {
	if len(s.ArchiveServices) == 0 {
		return nil
	}
	all := strings.Join(s.ArchiveServices, ",")
	switch {
	case s.ArchiveAll:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all, "NGIT_ARCHIVE_ALL archives everything, not only what these host; unset one of the two"}
	case len(s.ArchiveWhitelist) > 0:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all, "NGIT_ARCHIVE_WHITELIST says what is archived, too; unset one of the two"}
	}
	for _, given := range s.ArchiveServices {
		if _, err := nip34.NormalizeDomain(given); err != nil {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given, "want the domains of GRASP services without a scheme, like git.example.com, comma-separated"}
		}
		if nip34.OnDomain("https://"+given, strings.TrimRight(s.Domain, "/")) {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given, "that is NGIT_DOMAIN: what lists this service is hosted, not archived; take it out"}
		}
	}
	return nil
}

// idle tells of a list that changes nothing.
func (p Policy) idle() []string {
	if p.ArchiveAll && len(p.ArchiveWhitelist) > 0 {
		return []string{"NGIT_ARCHIVE_WHITELIST changes nothing, because NGIT_ARCHIVE_ALL archives every repository"}
	}
	return nil
}
