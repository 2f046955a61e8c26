package bus

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/crypto/bcrypt"

	"tendril.dev/proto"
)

// startEmbedded starts the embedded server in its folder, which is one to be thrown away if none is
// given.
func (b *Bus) startEmbedded(o Options) error {
	if o.Dir == "" {
		temp, err := os.MkdirTemp("", "tendril-bus-")
		if err != nil {
			return fmt.Errorf("make a folder for the embedded NATS: %w", err)
		}
		o.Dir, b.temporary = temp, temp
	} else if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of the embedded NATS: %w", err)
	}
	var users []*server.User
	var err error
	if o.Password != "" {
		b.inside = rand.Text()
		if users, err = embeddedUsers(o.Password, b.inside); err != nil {
			return err
		}
	}
	if b.server, err = startServing(o, users); err != nil {
		return err
	}
	if !o.Sizing.MemoryOnly { // what is in memory only would not outlive the server
		b.keeping.Go(func() { b.server.watch(b.open, cmp.Or(o.reviveEvery, reviveEvery)) })
	}
	return nil
}

// insideUser is this process at an embedded server that has users.
const insideUser = proto.UserTendril

// embeddedOptions are those of this process's own connection to the embedded server.
func (b *Bus) embeddedOptions() []nats.Option {
	options := []nats.Option{nats.InProcessServer(b.server)}
	if b.inside != "" {
		options = append(options, nats.UserInfo(insideUser, b.inside))
	}
	return options
}

// embeddedUsers are the users of an embedded server with a password: the operator, `tendril import`
// with the same password, which may offer events, and this process, which may do everything and
// whose password is random. The hashes are in memory only, so
// nobody tries passwords against them but through the server: a higher cost would be its own, for
// everybody who knocks.
func embeddedUsers(operator, inside string) (users []*server.User, err error) {
	for _, u := range []struct {
		name, password string
		permissions    *server.Permissions
	}{
		{insideUser, inside, nil},
		{proto.UserOperator, operator, permissionsOf(proto.UserOperator)},
		{proto.UserImport, operator, permissionsOf(proto.UserImport)},
	} {
		hash, err := bcrypt.GenerateFromPassword([]byte(u.password), bcrypt.MinCost)
		if err != nil {
			return nil, fmt.Errorf("hash the password of NATS user %s: %w", u.name, err)
		}
		users = append(users, &server.User{Username: u.name, Password: string(hash), Permissions: u.permissions})
	}
	return users, nil
}

func permissionsOf(user string) *server.Permissions {
	p := proto.PermissionsOf(user)
	return &server.Permissions{
		Publish: &server.SubjectPermission{Allow: p.Publish}, Subscribe: &server.SubjectPermission{Allow: p.Subscribe},
	}
}

// startServer starts the embedded NATS server in o.Dir; without users everybody may do everything.
// JetStream syncs every write: durable before done (docs/architecture.md, Six ideas).
func startServer(o Options, users []*server.User, log server.Logger) (*server.Server, error) {
	opts := &server.Options{
		ServerName: "tendril",
		JetStream:  true,
		StoreDir:   o.Dir,
		SyncAlways: true,
		DontListen: true,
		NoSigs:     true,
		MaxPayload: 1 << 20,
		Users:      users,
	}
	if o.Listen != "" && o.Listen != "none" {
		host, port, err := net.SplitHostPort(o.Listen)
		if err != nil {
			return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: want host:port, or none: %w", o.Listen, err)
		}
		n, err := strconv.Atoi(port)
		if err != nil || n < 0 || n > 65535 {
			return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: port must be a number up to 65535", o.Listen)
		}
		if n == 0 {
			n = server.RANDOM_PORT
		}
		// The server itself would try for a while and then end the process; a look beforehand gives
		// a sentence instead.
		if n > 0 {
			l, err := net.Listen("tcp", o.Listen)
			if err != nil {
				return nil, fmt.Errorf("NGIT_NATS_LISTEN is %q: %w; choose another address, or none", o.Listen, err)
			}
			l.Close()
		}
		opts.DontListen, opts.Host, opts.Port = false, host, n
	}
	srv, err := server.NewServer(opts)
	if err != nil {
		return nil, fmt.Errorf("configure the embedded NATS: %w", err)
	}
	srv.SetLoggerV2(log, false, false, false)
	go srv.Start()
	if !srv.ReadyForConnections(30 * time.Second) {
		srv.Shutdown()
		return nil, errors.New("start the embedded NATS: not ready after 30 seconds")
	}
	if !srv.JetStreamEnabled() {
		srv.Shutdown()
		return nil, fmt.Errorf("start the embedded NATS: JetStream could not use the folder %s", o.Dir)
	}
	return srv, nil
}
