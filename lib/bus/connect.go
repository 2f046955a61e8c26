package bus

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tendril.dev/lib/logins"
	"tendril.dev/proto"
)

const (
	// reconnectPause, and a random part as long, is between attempts to connect again: not all
	// processes of a deployment come at the same moment.
	reconnectPause = 500 * time.Millisecond
	// pingEvery and pingsOut say when a server is given up that fell silent without closing the
	// connection, as one whose node lost its power: after 6 to 9 s, within the TTL of claims.
	pingEvery = 3 * time.Second
	pingsOut  = 2
	// writeTimeout is how long one write may take. The client does not ping while it writes.
	writeTimeout = 8 * time.Second
	// mostReported is how many refused subjects are remembered, to be logged once each.
	mostReported = 1000
)

// connect connects to the server and opens JetStream as the login reaches it.
func (b *Bus) connect(o Options, more ...nats.Option) error {
	user, options, err := b.login(o)
	if err != nil {
		return err
	}
	options = append(append(b.connectOptions(o), options...), more...)
	// A server that refuses a login closes the connection, and its reason can be lost with what it
	// had not read: so an end without a reason is tried again.
	for range 3 {
		b.Conn, err = nats.Connect(o.URL, options...)
		if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			break
		}
	}
	if err != nil {
		return connectError(o, user, err)
	}
	if user != "" && proto.AccountOf(user) != proto.AccountCore {
		b.JS, err = jetstream.NewWithAPIPrefix(b.Conn, proto.CoreAPI, jetstream.WithPublishAsyncTimeout(commitTimeout))
	} else {
		b.JS, err = jetstream.New(b.Conn, jetstream.WithPublishAsyncTimeout(commitTimeout))
	}
	if err != nil {
		return fmt.Errorf("open JetStream: %w", err)
	}
	return nil
}

// connectOptions are the options of the connection to any server. nats.go calls all
// handlers on one goroutine.
func (b *Bus) connectOptions(o Options) []nats.Option {
	told, reported := "", map[string]bool{}
	return []nats.Option{
		nats.Name(o.Name), nats.MaxReconnects(-1),
		// A login that is refused may be one that a rotation has brought here before it reached the
		// server: it is tried again for ever, like a server that is away.
		nats.IgnoreAuthErrorAbort(), nats.ReconnectWait(reconnectPause), nats.ReconnectJitter(reconnectPause,
			reconnectPause), nats.PingInterval(pingEvery),
		nats.MaxPingsOutstanding(pingsOut), nats.FlusherTimeout(writeTimeout),
		// Each request for a batch makes a queue: the default of 65,536 places takes half a megabyte.
		nats.SyncQueueLen(4 * batchMessages),
		// What is written while NATS is away fails at once. Kept back and sent to a server that has
		// other streams now, a compare-and-set would mean something else.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Log.Warn("bus disconnected", "error", err)
			}
		}),
		nats.ReconnectHandler(func(*nats.Conn) {
			o.Log.Info("bus reconnected")
			told = ""
		}),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if why := err.Error(); why != told {
				o.Log.Warn("bus cannot reconnect, trying again", "error", err)
				told = why
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			switch {
			case errors.Is(err, nats.ErrPermissionViolation):
				b.refused.Add(1)
				if what := err.Error(); !reported[what] && len(reported) < mostReported {
					reported[what] = true
					o.Log.Error("NATS refused what this user may not do", "error", err)
				}
			case isRefused(err): // comes to the handler of reconnects as well
			case sub != nil:
				o.Log.Warn("bus error", "subject", sub.Subject, "error", err)
			default:
				o.Log.Warn("bus error", "error", err)
			}
		}),
	}
}

// login is who we are at the server, and how to know the server. It reads each file once, so that
// what is wrong is told before anything else. Without a login that the server checks, user is
// empty.
func (b *Bus) login(o Options) (user string, options []nats.Option, err error) {
	if b.server != nil {
		options = append(options, nats.InProcessServer(b.server))
		if b.inside != "" {
			options = append(options, nats.UserInfo(insideUser, b.inside))
		}
		return "", options, nil
	}
	inboxes := o.Role
	switch {
	case o.LoginFile != "":
		login, err := readLogin(o.LoginFile)
		if err != nil {
			return "", nil, err
		}
		user = logins.Role(login.User)
		inboxes = user
		options = append(options, nats.UserInfoHandler(func() (user, password string) {
			login, err := readLogin(o.LoginFile)
			if err != nil {
				o.Log.Warn("no login for NATS", "error", err)
			}
			return login.User, login.Password
		}))
	case o.Password != "":
		user = cmp.Or(o.Role, proto.UserOperator)
		options = append(options, nats.UserInfo(user, o.Password))
	case o.Creds != "":
		options = append(options, nats.UserCredentials(o.Creds))
	}
	if inboxes != "" {
		options = append(options, nats.CustomInboxPrefix(proto.InboxPrefix(inboxes)))
	}
	// nats.go reads these files again at every connect.
	if o.CA != "" {
		options = append(options, nats.RootCAs(o.CA))
	}
	if o.Cert != "" {
		options = append(options, nats.ClientCert(o.Cert, o.Key))
	}
	return user, options, nil
}

// readLogin reads a login file; its error is a sentence for the operator.
func readLogin(path string) (logins.Login, error) {
	login, err := logins.Read(path)
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		return login, fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: %w; want a file with one line, user:password", path, file.Err)
	}
	if err != nil {
		return login, fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: %w", path, err) // which says what is wanted
	}
	return login, nil
}

// connectError says why the first connect failed, in a sentence for the operator.
func connectError(o Options, user string, err error) error {
	server := Redacted(o.URL)
	_, unknown := errors.AsType[x509.UnknownAuthorityError](err)
	switch {
	case isRefused(err) && o.LoginFile != "":
		return fmt.Errorf("NGIT_NATS_LOGIN_FILE is %q: NATS %s refused user %s: %w", o.LoginFile, server, user, err)
	case isRefused(err) && o.Creds != "":
		return fmt.Errorf("NGIT_NATS_CREDS is %q: NATS %s refused it: %w", o.Creds, server, err)
	case isRefused(err) && strings.Contains(o.URL, "@"):
		return fmt.Errorf("NGIT_NATS_URL is %q: NATS refused the user and password in it: %w", server, err)
	case isRefused(err):
		return fmt.Errorf("NGIT_NATS_LOGIN_FILE is not set: NATS %s wants another login: %w", server, err)
	case unknown:
		return fmt.Errorf("NGIT_NATS_CA is %q: the certificate of NATS %s is not signed by any certificate in this file: %w",
			o.CA, server, err)
	}
	return fmt.Errorf("connect to NATS %s: %w", server, err)
}

// isRefused reports whether an error of connecting says that the server does not take the login.
func isRefused(err error) bool {
	return errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) ||
		errors.Is(err, nats.ErrAuthRevoked)
}

// isSlow reports whether the first connect failed because the server, or this process, took longer
// than the two seconds that it may take, as both do on a machine under load.
func isSlow(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout() || errors.Is(err, nats.ErrTimeout)
}

// Redacted returns NATS URLs, comma-separated, without passwords and tokens.
func Redacted(urls string) string {
	var shown []string
	for given := range strings.SplitSeq(urls, ",") {
		u, err := url.Parse(strings.TrimSpace(given))
		if err != nil {
			shown = append(shown, "(a URL that cannot be read)")
			continue
		}
		if u.User != nil {
			u.User = url.User("xxxxx")
		}
		shown = append(shown, u.String())
	}
	return strings.Join(shown, ", ")
}
