// Package hosting knows which repositories this service keeps: those whose announcement lists it
// (GRASP-01), and those that its operator archives (GRASP-05).
package hosting

import (
	"fmt"

	"tendril.dev/lib/config"
	"tendril.dev/lib/nostr"
)

// Rules say by its announcement alone whether a repository is kept here. The zero value keeps
// nothing. Whether an announcement is accepted at all is for ingest to decide.
type Rules struct {
	domain   string
	all      bool
	archived List
	services []string // domains
	readOnly bool
}

// New reads the rules from settings. An error is one sentence that names the setting and what would
// be right.
func New(s config.Settings) (Rules, error) {
	domain, err := nostr.NormalizeDomain(s.Domain)
	if err != nil {
		return Rules{}, fmt.Errorf("NGIT_DOMAIN is %q: %w; want the public host name, like git.example.com", s.Domain, err)
	}
	r := Rules{domain: domain, all: s.ArchiveAll, readOnly: s.IsArchiveReadOnly()}
	if r.archived, err = ParseList(s.ArchiveWhitelist); err != nil {
		return Rules{}, fmt.Errorf("NGIT_ARCHIVE_WHITELIST: %w", err)
	}
	for _, given := range s.ArchiveServices {
		service, err := nostr.NormalizeDomain(given)
		if err != nil {
			return Rules{}, fmt.Errorf("NGIT_ARCHIVE_GRASP_SERVICES: %w", err)
		}
		r.services = append(r.services, service)
	}
	return r, nil
}

// Of are the rules of a service that archives nothing.
func Of(domain string) Rules { return Rules{domain: domain} }

// Domain is that of this service, normalised.
func (r Rules) Domain() string { return r.domain }

// Lists reports whether the announcement lists this service: the repository is hosted here and can
// be pushed to, whatever is archived.
func (r Rules) Lists(a *nostr.Announcement) bool { return a.ListsService(r.domain) }

// Archives reports whether the repository is kept though its announcement does not list this
// service: everything is archived, or the repository is on the list, or its announcement has a
// clone URL at one of the services that are archived.
func (r Rules) Archives(a *nostr.Announcement) bool {
	return r.archives(a) && !r.Lists(a)
}

func (r Rules) archives(a *nostr.Announcement) bool {
	if r.all || r.archived.Has(a.Ref) {
		return true
	}
	for _, service := range r.services {
		if a.HasCloneOn(service) {
			return true
		}
	}
	return false
}

// Keeps reports whether the repository is here, hosted or archived.
func (r Rules) Keeps(a *nostr.Announcement) bool { return r.archives(a) || r.Lists(a) }

// ArchivesAny reports whether anything is archived at all.
func (r Rules) ArchivesAny() bool { return r.all || !r.archived.Empty() || len(r.services) > 0 }

// ReadOnly reports whether pushes to archived repositories are refused.
func (r Rules) ReadOnly() bool { return r.readOnly }
