package config

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	gonostr "github.com/nbd-wtf/go-nostr"
	"github.com/nbd-wtf/go-nostr/nip19"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
)

// Check says what is wrong with the settings: the first wrong one, in one sentence with what would
// be right. It looks at nothing but them; folders and ports are tried by who opens them.
func (s Settings) Check() error {
	for f := range s.fields() {
		if err := f.inRange(); err != nil {
			return err
		}
	}
	for _, check := range []func() error{s.Service.check, s.Storage.check, s.Bus.check, s.Policy.check, s.Sync.check,
		s.Git.check, s.Front.check, s.archive, s.Observe.check} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// inRange holds a number, a size or a time to the range that its tags declare.
func (f field) inRange() error {
	if f.Tag.Get("min") == "" {
		return nil
	}
	least, most := reflect.New(f.Type).Elem(), reflect.New(f.Type).Elem()
	if err := errors.Join(f.decode(f.Tag.Get("min"), least), f.decode(f.Tag.Get("max"), most)); err != nil {
		return fmt.Errorf("%s: its declared range: %w", f.name(), err)
	}
	if n := f.value.Int(); n < least.Int() || n > most.Int() {
		return &Error{f.name(), fmt.Sprint(f.value), "want " + rangeOf(f.Tag.Get)}
	}
	return nil
}

// workerName is what fits into one token of a bucket's key.
var workerName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s Service) check() error {
	if s.Domain == "" {
		return &Error{"NGIT_DOMAIN", "", "is not set: want the public host name of this server, like git.example.com"}
	}
	if _, err := nostr.NormalizeDomain(s.Domain); err != nil {
		return &Error{"NGIT_DOMAIN", s.Domain, "want the public host name of this server without a scheme, like git.example.com, with a port if it is not 80 or 443"}
	}
	if err := checkAddress("NGIT_BIND_ADDRESS", s.BindAddress, "127.0.0.1:7334"); err != nil {
		return err
	}
	if s.RelayOwnerNsec != "" {
		if _, _, err := KeyPair(s.RelayOwnerNsec); err != nil {
			return &Error{"NGIT_RELAY_OWNER_NSEC", "", "is not a secret key (its value is not shown): want nsec1… or 64 hex digits, or nothing for a generated key"}
		}
	}
	if s.WorkerName != "" && !workerName.MatchString(s.WorkerName) {
		return &Error{"NGIT_WORKER_NAME", s.WorkerName, "want up to 64 letters, digits, - and _"}
	}
	return nil
}

func (s Storage) check() error {
	if s.GitDataPath == "" {
		return &Error{"NGIT_GIT_DATA_PATH", "", "is empty: want a folder, like ./data/git"}
	}
	if s.RelayDataPath == "" {
		return &Error{"NGIT_RELAY_DATA_PATH", "", "is empty: want a folder, like ./data/relay"}
	}
	return nil
}

// maxPassword is the longest password that bcrypt takes, in bytes.
const maxPassword = 72

// warnings are about settings that change nothing, or more than one may think.
func (s Settings) warnings() (warnings []string) {
	if s.ArchiveAll && len(s.ArchiveWhitelist) > 0 {
		warnings = append(warnings, "NGIT_ARCHIVE_WHITELIST changes nothing, because NGIT_ARCHIVE_ALL archives every repository")
	}
	if s.NATSURL != "" {
		return warnings
	}
	for _, server := range []struct{ name, value string }{
		{"NGIT_NATS_LOGIN_FILE", s.NATSLoginFile}, {"NGIT_NATS_CREDS", s.NATSCreds}, {"NGIT_NATS_CA", s.NATSCA}, {"NGIT_NATS_CERT", s.NATSCert},
	} {
		if server.value != "" {
			warnings = append(warnings, server.name+" has no effect without NGIT_NATS_URL: it is for a NATS server of its own, and this process embeds one")
		}
	}
	if s.NATSPassword == "" && s.NATSListen != "none" && !loopback(s.NATSListen) {
		warnings = append(warnings, fmt.Sprintf("NGIT_NATS_LISTEN is %q and NGIT_NATS_PASSWORD is not set: everyone who reaches this address can read and write everything; "+
			"set a password, or listen on 127.0.0.1 only", s.NATSListen))
	}
	return warnings
}

func (b Bus) check() error {
	replicas := strconv.Itoa(b.NATSReplicas)
	if !slices.Contains([]int{1, 3, 5}, b.NATSReplicas) {
		return &Error{"NGIT_NATS_REPLICAS", replicas, "want 1, 3 or 5"}
	}
	if b.ForgetLog != "" {
		for given := range strings.SplitSeq(b.ForgetLog, ",") {
			_, noTime := time.Parse(time.RFC3339Nano, given)
			if _, err := nostr.NormalizeDomain(given); err != nil && noTime != nil {
				return &Error{"NGIT_FORGET_LOG", b.ForgetLog, "want the time or the domain that the message names by which the start ended"}
			}
		}
	}
	if b.NATSLoginFile != "" && b.NATSCreds != "" {
		return &Error{"NGIT_NATS_LOGIN_FILE", b.NATSLoginFile, "want either this or NGIT_NATS_CREDS, not both"}
	}
	if b.NATSCert != "" && b.NATSKey == "" {
		return &Error{"NGIT_NATS_CERT", b.NATSCert, "want its key in NGIT_NATS_KEY as well"}
	}
	if b.NATSKey != "" && b.NATSCert == "" {
		return &Error{"NGIT_NATS_KEY", b.NATSKey, "want its certificate in NGIT_NATS_CERT as well"}
	}
	if len(b.NATSPassword) > maxPassword {
		return &Error{"NGIT_NATS_PASSWORD", "", fmt.Sprintf("is too long (its value is not shown): want at most %d bytes", maxPassword)}
	}
	if b.NATSURL == "" {
		if b.NATSReplicas != 1 {
			return &Error{"NGIT_NATS_REPLICAS", replicas, "want 1 without NGIT_NATS_URL, for the embedded NATS is a single server"}
		}
		if b.NATSListen == "none" {
			return nil
		}
		return checkAddress("NGIT_NATS_LISTEN", b.NATSListen, "127.0.0.1:4222, or none")
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
			return &Error{"NGIT_NATS_URL", "", "is not the URL of a NATS server (its value is not shown): want nats://host:4222, or several, comma-separated"}
		}
	}
	return nil
}

// dropMalformed takes malformed entries out of the lists of who is not welcome, and says which.
// Other GRASP servers leave them out too; to stop a start for one would take the whole service
// away. Lists of who is welcome are strict: without its malformed entries such a list may be empty,
// and then everyone is welcome.
func (p *Policy) dropMalformed() (warnings []string) {
	for _, list := range []struct {
		name    string
		entries *[]string
		check   func(string) error
	}{
		{"NGIT_REPOSITORY_BLACKLIST", &p.RepositoryBlacklist, checkRepository},
		{"NGIT_EVENT_BLACKLIST", &p.EventBlacklist, checkNpub},
	} {
		kept := []string(nil)
		for _, entry := range *list.entries {
			if err := list.check(entry); err != nil {
				warnings = append(warnings, fmt.Sprintf("%s: the entry %.100q is left out: %v", list.name, entry, err))
				continue
			}
			kept = append(kept, entry)
		}
		*list.entries = kept
	}
	return warnings
}

func (p Policy) check() error {
	for _, npub := range p.EventBlacklist {
		if checkNpub(npub) != nil {
			return &Error{"NGIT_EVENT_BLACKLIST", npub, "want npubs, comma-separated"}
		}
	}
	if err := checkRepositories("NGIT_REPOSITORY_WHITELIST", p.RepositoryWhitelist); err != nil {
		return err
	}
	return checkRepositories("NGIT_REPOSITORY_BLACKLIST", p.RepositoryBlacklist)
}

func (s Sync) check() error {
	for _, given := range s.BootstrapRelays {
		if _, err := nostr.NormalizeRelayURL(given); err != nil {
			return &Error{"NGIT_SYNC_BOOTSTRAP_RELAY_URL", given, err.Error() + "; want relays like wss://relay.example.com, comma-separated"}
		}
	}
	if s.BaseBackoffSeconds > s.MaxBackoffSeconds {
		return &Error{"NGIT_SYNC_BASE_BACKOFF_SECS", strconv.Itoa(s.BaseBackoffSeconds),
			fmt.Sprintf("want at most NGIT_SYNC_MAX_BACKOFF_SECS, which is %d", s.MaxBackoffSeconds)}
	}
	return nil
}

func (g Git) check() error {
	if err := checkAddress("NGIT_GIT_LISTEN", g.GitListen, "127.0.0.1:0 or 0.0.0.0:7336"); err != nil {
		return err
	}
	_, err := g.ServerLimits()
	return err
}

func (f Front) check() error {
	if !slices.Contains([]string{"none", "read", "write", "both"}, f.AuthRequired) {
		return &Error{"NGIT_AUTH_REQUIRED", f.AuthRequired, "want none, read, write or both"}
	}
	_, err := f.Proxies()
	return err
}

// AnswerChunk is how much of an answer a client must take within NGIT_ANSWER_STALL, in bytes.
const AnswerChunk = 32 << 10

func (o Observe) check() error {
	if _, err := obs.ParseLevel(o.LogLevel); err != nil {
		return &Error{"NGIT_LOG_LEVEL", o.LogLevel, err.Error()}
	}
	if !slices.Contains([]string{"text", "json"}, strings.ToLower(o.LogFormat)) {
		return &Error{"NGIT_LOG_FORMAT", o.LogFormat, "want text or json"}
	}
	return checkAddress("NGIT_OBSERVE_ADDRESS", o.ObserveAddress, "127.0.0.1:7335")
}

// ServerLimit bounds requests to one git server.
type ServerLimit struct {
	Domain     string // normalised: host, or host:port
	Concurrent int    // most requests at once
	Rate       int    // most requests in any 60 seconds
}

// ServerLimits reads NGIT_SYNC_DOMAIN_LIMITS: domain:concurrent:rate.
func (g Git) ServerLimits() ([]ServerLimit, error) {
	var limits []ServerLimit
	for _, given := range g.DomainLimits {
		wrong := &Error{"NGIT_SYNC_DOMAIN_LIMITS", given, "want domain:concurrent:rate, like github.com:10:60, comma-separated"}
		rest, rate, ok := cutNumber(given)
		if !ok {
			return nil, wrong
		}
		name, concurrent, ok := cutNumber(rest)
		if !ok {
			return nil, wrong
		}
		domain, err := nostr.NormalizeDomain(name)
		if err != nil {
			return nil, wrong
		}
		limits = append(limits, ServerLimit{Domain: domain, Concurrent: concurrent, Rate: rate})
	}
	return limits, nil
}

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
			return nil, &Error{"NGIT_TRUSTED_PROXIES", given, "want addresses and networks, like 127.0.0.1 or 10.0.0.0/8, comma-separated"}
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

// cutNumber cuts ":n" off the end, n from 1 to 1000000.
func cutNumber(s string) (before string, n int, ok bool) {
	colon := strings.LastIndexByte(s, ':')
	if colon < 0 {
		return "", 0, false
	}
	n, err := strconv.Atoi(s[colon+1:])
	return s[:colon], n, err == nil && n >= 1 && n <= 1_000_000
}

// checkAddress takes host:port; like says what would be right.
func checkAddress(name, value, like string) error {
	_, port, err := net.SplitHostPort(value)
	if err != nil || checkPort(port) != nil {
		return &Error{name, value, "want host:port, like " + like}
	}
	return nil
}

// loopback reports whether value is host:port and only this machine can reach it.
func loopback(value string) bool {
	host, port, err := net.SplitHostPort(value)
	if err != nil || checkPort(port) != nil {
		return false
	}
	address, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && address.IsLoopback()
}

func checkPort(port string) error {
	_, err := strconv.ParseUint(port, 10, 16)
	return err
}

func checkNpub(s string) error {
	if kind, _, err := nip19.Decode(s); err != nil || kind != "npub" {
		return errors.New("not a legal npub")
	}
	return nil
}

func checkRepositories(name string, entries []string) error {
	for _, entry := range entries {
		if err := checkRepository(entry); err != nil {
			return &Error{name, entry, err.Error() + "; want npub, npub/identifier or identifier, comma-separated"}
		}
	}
	return nil
}

func checkRepository(entry string) error {
	if !strings.HasPrefix(entry, "npub1") {
		return nostr.CheckIdentifier(entry)
	}
	npub, identifier, both := strings.Cut(entry, "/")
	if err := checkNpub(npub); err != nil || !both {
		return err
	}
	return nostr.CheckIdentifier(identifier)
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
	all := strings.Join(s.ArchiveServices, ",")
	switch {
	case all == "":
		return nil
	case s.ArchiveAll:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all, "NGIT_ARCHIVE_ALL archives everything, not only what these host; unset one of the two"}
	case len(s.ArchiveWhitelist) > 0:
		return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", all, "NGIT_ARCHIVE_WHITELIST says what is archived, too; unset one of the two"}
	}
	for _, given := range s.ArchiveServices {
		if _, err := nostr.NormalizeDomain(given); err != nil {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given, "want the domains of GRASP services without a scheme, like git.example.com, comma-separated"}
		}
		if nostr.OnDomain("https://"+given, strings.TrimRight(s.Domain, "/")) {
			return &Error{"NGIT_ARCHIVE_GRASP_SERVICES", given, "that is NGIT_DOMAIN: what lists this service is hosted, not archived; take it out"}
		}
	}
	return nil
}

// groupOrder is what a secret key of secp256k1 is below; one is not 0 either.
const groupOrder = "fffffffffffffffffffffffffffffffebaaedce6af48a03bbfd25e8cd0364141"

// KeyPair reads a secret key as NGIT_RELAY_OWNER_NSEC and key files hold it: nsec1… (NIP-19) or 64
// hex digits, with spaces around. It returns the secret and the public key, 64 hex digits each. Its
// error never repeats the secret.
func KeyPair(text string) (secret, public string, err error) {
	secret = strings.TrimSpace(text)
	if b, err := hex.DecodeString(secret); err == nil && len(b) == 32 {
		secret = strings.ToLower(secret)
	} else {
		kind, decoded, err := nip19.Decode(secret)
		if err != nil || kind != "nsec" {
			return "", "", errors.New("holds no secret key: want nsec1… or 64 hex digits")
		}
		secret = decoded.(string)
	}
	public, err = gonostr.GetPublicKey(secret)
	if err != nil || secret >= groupOrder || secret == strings.Repeat("0", 64) {
		return "", "", errors.New("holds no valid secret key")
	}
	return secret, public, nil
}
