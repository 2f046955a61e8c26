package config

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
)

// Check says what is wrong with the settings: the first wrong one, in one sentence with what would
// be right. It looks at nothing but them; folders and ports are tried by who opens them.
func (s Settings) Check() error {
	for f := range s.fields() {
		if err := f.check(); err != nil {
			return err
		}
	}
	_, limits := s.ServerLimits()
	_, proxies := s.Proxies()
	err := cmp.Or(s.Service.check(), s.Bus.check(), s.Policy.check(), s.Sync.check(), s.archive(), s.private(), limits,
		proxies)
	if _, noLevel := obs.ParseLevel(s.LogLevel); err == nil && noLevel != nil {
		return &Error{"NGIT_LOG_LEVEL", s.LogLevel, noLevel.Error()}
	}
	return err
}

// field is one declared setting.
type field struct {
	reflect.StructField
	value reflect.Value
}

// name is the setting's NGIT_X.
func (f field) name() string { return f.Tag.Get("env") }

// fields returns every declared setting with its value, in the order of declaration.
func (s *Settings) fields() iter.Seq[field] {
	return func(yield func(field) bool) {
		for topic, group := range reflect.ValueOf(s).Elem().Fields() {
			if !topic.Anonymous {
				continue
			}
			for f, value := range group.Fields() {
				if !yield(field{f, value}) {
					return
				}
			}
		}
	}
}

// check holds a value to what its tags declare.
func (f field) check() error {
	value := fmt.Sprint(f.value)
	like := f.Tag.Get("address")
	mayBeNone := value == "none" && strings.HasSuffix(like, "none") || value == "" && f.Tag.Get("default") == ""
	if like != "" && !mayBeNone {
		_, port, err := net.SplitHostPort(value)
		if _, noPort := strconv.ParseUint(port, 10, 16); err != nil || noPort != nil {
			return &Error{f.name(), value, "want host:port, like " + like}
		}
	}
	if filled := f.Tag.Get("filled"); filled != "" && value == "" {
		return &Error{f.name(), "", "is empty: want " + filled}
	}
	if values := f.Tag.Get("oneof"); values != "" && !slices.Contains(strings.Fields(strings.NewReplacer(",", " ", " or ",
		" ").Replace(values)), value) {
		return &Error{f.name(), value, "want " + values}
	}
	if f.Tag.Get("min") == "" {
		return nil
	}
	least, most := reflect.New(f.Type).Elem(), reflect.New(f.Type).Elem()
	kind := f.Tag.Get("type")
	if err := errors.Join(decode(f.Tag.Get("min"), kind, least), decode(f.Tag.Get("max"), kind, most)); err != nil {
		return fmt.Errorf("%s: its declared range: %w", f.name(), err)
	}
	if n := f.value.Int(); n < least.Int() || n > most.Int() {
		return &Error{f.name(), value, "want " + rangeOf(f.Tag.Get)}
	}
	return nil
}

func (s Service) check() error {
	if s.Domain == "" {
		return &Error{"NGIT_DOMAIN", "", "is not set: want the public host name of this server, like git.example.com"}
	}
	if _, err := nostr.NormalizeDomain(s.Domain); err != nil {
		return &Error{"NGIT_DOMAIN", s.Domain,
			"want the public host name of this server without a scheme, like git.example.com, with a port if it is not 80 or " +
				"443"}
	}
	if _, err := nostr.NormalizeBasePath(s.BasePath); err != nil {
		return &Error{"NGIT_BASE_PATH", s.BasePath,
			"want a path like /grasp, of letters, digits, '-', '.', '_' and '~', whose first part is no npub; or / for the " +
				"whole domain"}
	}
	if s.RelayOwnerNsec != "" {
		if _, err := ReadKey(s.RelayOwnerNsec); err != nil {
			return &Error{"NGIT_RELAY_OWNER_NSEC", "",
				"is not a secret key (its value is not shown): want nsec1… or 64 hex digits, or nothing for a generated key"}
		}
	}
	return nil
}

// maxPassword is the longest password that bcrypt takes, in bytes.
const maxPassword = 72

func (b Bus) check() error {
	for _, given := range b.ForgetLog {
		_, noTime := time.Parse(time.RFC3339Nano, given)
		if _, err := nostr.NormalizeService(given); err != nil && noTime != nil {
			return &Error{"NGIT_FORGET_LOG", given, "want the time or the domain that is in the error that stopped the start"}
		}
	}
	switch {
	case b.NATSLoginFile != "" && b.NATSCreds != "":
		return &Error{"NGIT_NATS_LOGIN_FILE", b.NATSLoginFile, "want either this or NGIT_NATS_CREDS, not both"}
	case b.NATSCert != "" && b.NATSKey == "":
		return &Error{"NGIT_NATS_CERT", b.NATSCert, "want its key in NGIT_NATS_KEY as well"}
	case b.NATSKey != "" && b.NATSCert == "":
		return &Error{"NGIT_NATS_KEY", b.NATSKey, "want its certificate in NGIT_NATS_CERT as well"}
	case len(b.NATSPassword) > maxPassword:
		return &Error{"NGIT_NATS_PASSWORD", "", fmt.Sprintf("is too long (its value is not shown): want at most %d bytes",
			maxPassword)}
	case b.NATSURL == "" && b.NATSReplicas != 1:
		return &Error{"NGIT_NATS_REPLICAS", strconv.Itoa(b.NATSReplicas),
			"want 1 without NGIT_NATS_URL, for the embedded NATS is a single server"}
	case b.NATSURL == "":
		return nil
	}
	for given := range strings.SplitSeq(b.NATSURL, ",") {
		given = strings.TrimSpace(given)
		if !strings.Contains(given, "://") {
			given = "nats://" + given
		}
		u, err := url.Parse(given)
		if err != nil || u.Hostname() == "" || !slices.Contains([]string{"nats", "tls", "ws", "wss"}, u.Scheme) {
			// The value may carry a password, and one that cannot be parsed cannot be stripped of
			// it.
			return &Error{"NGIT_NATS_URL", "",
				"is not the URL of a NATS server (its value is not shown): want nats://host:4222, or several, comma-separated"}
		}
	}
	return nil
}

// warnings are about settings that change nothing, or more than one may think.
func (s Settings) warnings() (warnings []string) {
	if s.ArchiveAll && len(s.ArchiveWhitelist) > 0 {
		warnings = append(warnings,
			"NGIT_ARCHIVE_WHITELIST changes nothing, because NGIT_ARCHIVE_ALL archives every repository")
	}
	if s.NATSURL != "" {
		return warnings
	}
	for _, server := range []struct{ name, value string }{
		{"NGIT_NATS_LOGIN_FILE", s.NATSLoginFile}, {"NGIT_NATS_CREDS", s.NATSCreds}, {"NGIT_NATS_CA",
			s.NATSCA}, {"NGIT_NATS_CERT", s.NATSCert},
	} {
		if server.value != "" {
			warnings = append(warnings,
				server.name+" has no effect without NGIT_NATS_URL: it is for a NATS server of its own, and this process embeds one")
		}
	}
	host, _, _ := net.SplitHostPort(s.NATSListen)
	address, err := netip.ParseAddr(host)
	if s.NATSPassword == "" && s.NATSListen != "none" && host != "localhost" && (err != nil || !address.IsLoopback()) {
		warnings = append(warnings,
			fmt.Sprintf("NGIT_NATS_LISTEN is %q and NGIT_NATS_PASSWORD is not set: everyone who reaches this address can read and write everything; "+
				"set a password, or listen on 127.0.0.1 only", s.NATSListen))
	}
	return warnings
}

// dropMalformed takes malformed entries out of the lists of who is not welcome, and says which.
// Other GRASP servers leave them out too; to stop a start for one would take the whole service
// away. Lists of who is welcome are strict: without its malformed entries such a list may be empty,
// and then everyone is welcome.
func (p *Policy) dropMalformed() (warnings []string) {
	drop := func(name string, entries []string, check func(string) error) []string {
		return slices.DeleteFunc(slices.Clone(entries), func(entry string) bool {
			err := check(entry)
			if err != nil {
				warnings = append(warnings, fmt.Sprintf("%s: the entry %.100q is left out: %v", name, entry, err))
			}
			return err != nil
		})
	}
	p.RepositoryBlacklist = drop("NGIT_REPOSITORY_BLACKLIST", p.RepositoryBlacklist,
		func(entry string) error { return new(List).add(entry) })
	p.EventBlacklist = drop("NGIT_EVENT_BLACKLIST", p.EventBlacklist, func(entry string) error {
		_, err := ParseNpub(entry)
		return err
	})
	return warnings
}

func (p Policy) check() error {
	_, hosted := ParseList("NGIT_REPOSITORY_WHITELIST", p.RepositoryWhitelist)
	_, archived := ParseList("NGIT_ARCHIVE_WHITELIST", p.ArchiveWhitelist)
	return cmp.Or(hosted, archived)
}

// Bootstrap reads the relays to sync from at the start.
func (s Sync) Bootstrap() (urls []nostr.RelayURL, err error) {
	return relayURLs("NGIT_SYNC_BOOTSTRAP_RELAY_URL", s.BootstrapRelays)
}

// Plus says how conversations elsewhere are read (GRASP-03).
type Plus struct {
	Off             bool
	Index, Fallback []nostr.RelayURL
	MaxRelays       int
	AllowPrivate    bool // addresses that are not public
}

// Plus reads how conversations elsewhere are read.
func (s Settings) Plus() (p Plus, err error) {
	p = Plus{Off: !s.PlusEnabled || s.PrivateMode, MaxRelays: s.PlusMaxRelays, AllowPrivate: s.AllowPrivate}
	var errs [2]error
	p.Index, errs[0] = relayURLs("NGIT_USER_INDEX_RELAYS", s.IndexRelays)
	p.Fallback, errs[1] = relayURLs("NGIT_SYNC_PLUS_FALLBACK_RELAYS", s.FallbackRelays)
	return p, cmp.Or(errs[0], errs[1])
}

// relayURLs reads a list of relays; none is an empty one.
func relayURLs(name string, list []string) (urls []nostr.RelayURL, err error) {
	for _, given := range list {
		if given == "none" && len(list) == 1 {
			return nil, nil
		}
		url, err := nostr.NormalizeRelayURL(given)
		if err != nil {
			return nil, &Error{name, given, err.Error() +
				"; want relays like wss://relay.example.com, comma-separated"}
		}
		urls = append(urls, url)
	}
	return urls, nil
}

func (s Sync) check() error {
	if _, err := s.Bootstrap(); err != nil {
		return err
	}
	if s.BaseBackoffSeconds > s.MaxBackoffSeconds {
		return &Error{"NGIT_SYNC_BASE_BACKOFF_SECS", strconv.Itoa(s.BaseBackoffSeconds),
			fmt.Sprintf("want at most NGIT_SYNC_MAX_BACKOFF_SECS, which is %d", s.MaxBackoffSeconds)}
	}
	return nil
}

// ServerLimit bounds requests to one git server.
type ServerLimit struct {
	Domain     string // normalised: host, or host:port
	Concurrent int    // most requests at once
	Rate       int    // most requests in any 60 seconds
}

var serverLimit = regexp.MustCompile(`^(.+):([1-9][0-9]{0,5}):([1-9][0-9]{0,5})$`)

// ServerLimits reads NGIT_SYNC_DOMAIN_LIMITS: domain:concurrent:rate.
func (g Git) ServerLimits() (limits []ServerLimit, err error) {
	for _, given := range g.DomainLimits {
		found := serverLimit.FindStringSubmatch(given)
		if found == nil {
			found = make([]string, 4)
		}
		l := ServerLimit{}
		l.Domain, err = nostr.NormalizeDomain(found[1])
		if err != nil {
			return nil, &Error{"NGIT_SYNC_DOMAIN_LIMITS", given,
				"want domain:concurrent:rate, like github.com:10:60, comma-separated"}
		}
		l.Concurrent, _ = strconv.Atoi(found[2]) // digits
		l.Rate, _ = strconv.Atoi(found[3])
		limits = append(limits, l)
	}
	return limits, nil
}

// AnswerChunk is how much of an answer a client must take within two minutes, in bytes.
const AnswerChunk = 32 << 10

// AuthToRead reports whether clients must authenticate before they may read from the relay
// (NIP-42).
func (f Front) AuthToRead() bool { return f.AuthRequired == "read" || f.AuthRequired == "both" }

// AuthToWrite reports whether they must before they may publish.
func (f Front) AuthToWrite() bool { return f.AuthRequired == "write" || f.AuthRequired == "both" }

// Proxies reads NGIT_TRUSTED_PROXIES: addresses and networks, without zones.
func (f Front) Proxies() ([]netip.Prefix, error) {
	var proxies []netip.Prefix
	for _, given := range f.TrustedProxies {
		network, err := netip.ParsePrefix(given)
		if addr, notAddr := netip.ParseAddr(given); notAddr == nil && addr.Zone() == "" {
			addr = addr.Unmap()
			network, err = addr.Prefix(addr.BitLen())
		}
		if err != nil || network.Addr().Is4In6() {
			return nil, &Error{"NGIT_TRUSTED_PROXIES", given,
				"want addresses and networks, like 127.0.0.1 or 10.0.0.0/8, comma-separated"}
		}
		proxies = append(proxies, network)
	}
	return proxies, nil
}

// DisplayName is the name of the relay for people: NGIT_RELAY_NAME, or "<domain> grasp relay".
func (s Service) DisplayName() string {
	if s.RelayName != "" {
		return s.RelayName
	}
	return s.Domain + " grasp relay"
}

// Address is where the service is among others: its domain, and the path below which all of it lies.
// It is what announcements and proofs are compared with.
func (s Service) Address() string { return s.Domain + s.BasePath }

// At is the address of a page in links on other pages, by its path below the base path.
func (s Service) At(path string) string { return s.BasePath + path }

// URL is the URL of the service, without a slash at its end. scheme is "http" or "ws"; it becomes
// "https" or "wss" unless the domain is this machine's own, which is served without TLS.
func (s Service) URL(scheme string) string {
	if !isThisMachine(s.Domain) {
		scheme += "s"
	}
	return scheme + "://" + s.Address()
}

// HasPublicName reports whether the domain is a name that others can look up: neither an IP address
// nor a local name.
func (s Service) HasPublicName() bool {
	host, _, err := net.SplitHostPort(s.Domain)
	if err != nil {
		host = s.Domain
	}
	return !nostr.IsLocal(strings.Trim(host, "[]")) && net.ParseIP(strings.Trim(host, "[]")) == nil
}

// isThisMachine reports whether a domain, with or without a port, leads to the machine itself.
func isThisMachine(domain string) bool {
	host, _, err := net.SplitHostPort(domain)
	if err != nil {
		host = domain
	}
	ip, _ := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || ip.IsLoopback()
}

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
	if s.ArchiveReadOnly != nil && *s.ArchiveReadOnly && !s.Archives() {
		return &Error{"NGIT_ARCHIVE_READ_ONLY", "true",
			"nothing is archived: want NGIT_ARCHIVE_ALL, NGIT_ARCHIVE_WHITELIST or NGIT_ARCHIVE_GRASP_SERVICES too, or unset it"}
	}
	never, _ := ParseList("", s.RepositoryBlacklist) // the malformed are left out
	for _, entry := range s.ArchiveWhitelist {
		archived, _ := ParseList("", []string{entry}) // checked
		for ref := range archived.entries {
			if never.Has(ref) {
				return &Error{"NGIT_ARCHIVE_WHITELIST", entry,
					"NGIT_REPOSITORY_BLACKLIST names it too, and that is never kept; take it out of one of the two"}
			}
		}
	}
	all := strings.Join(s.ArchiveServices, ",")
	switch {
	case all == "":
		return nil
	case s.ArchiveAll:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all,
			"NGIT_ARCHIVE_ALL archives everything, not only what these host; unset one of the two"}
	case len(s.ArchiveWhitelist) > 0:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all,
			"NGIT_ARCHIVE_WHITELIST says what is archived, too; unset one of the two"}
	}
	for _, given := range s.ArchiveServices {
		if _, err := nostr.NormalizeDomain(given); err != nil {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given,
				"want the domains of GRASP services without a scheme, like git.example.com, comma-separated"}
		}
		if service, _ := nostr.NormalizeService(s.Domain + "/" + s.BasePath); nostr.OnDomain("https://"+given, service) {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given,
				"that is NGIT_DOMAIN: what lists this service is hosted, not archived; take it out"}
		}
	}
	return nil
}
