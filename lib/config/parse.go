package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"tendril.dev/lib/nostr"
	"tendril.dev/lib/obs"
)

// testProgram is set by the linker in the programs that test/world builds: in them, as in tests
// themselves, constants can be set like settings.
var testProgram string

// Error is a wrong value of a setting, as one sentence for the operator.
type Error struct {
	Setting string // NGIT_X
	Value   string // as it was given; "": none, or one that must not be printed
	Reason  string // what is wrong with it, and what would be right
}

func (e *Error) Error() string {
	if e.Value == "" {
		return e.Setting + " " + e.Reason
	}
	return fmt.Sprintf("%s is %.200q: %s", e.Setting, e.Value, e.Reason)
}

var helpOptions = kong.HelpOptions{Compact: true, FlagsLast: true, WrapUpperBound: 132,
	ValueFormatter: func(v *kong.Value) string { return describe(v.Help, v.Tag) }}

// HelpAll is the flag --help-all of a grammar: the help with every setting.
type HelpAll bool

// BeforeReset prints the help and ends the program.
func (HelpAll) BeforeReset(ctx *kong.Context) error {
	eachFlag(ctx.Model.Node, func(flag *kong.Flag) bool {
		flag.Hidden = false
		return true
	})
	defer ctx.Exit(0)
	return kong.DefaultHelpPrinter(helpOptions, ctx)
}

// shortHelp prints the help with the main settings, one line each.
func shortHelp(options kong.HelpOptions, ctx *kong.Context) error {
	if ctx.Selected() != nil { // of a command, only what is its own
		for _, flag := range ctx.Model.Node.Flags {
			flag.Hidden = flag.Hidden || flag.Name == "version"
		}
	}
	eachFlag(ctx.Model.Node, func(flag *kong.Flag) bool {
		if short, ok := flag.Tag.Get("main"), flag.Tag.Has("main"); ok {
			flag.Help, flag.Group = short, nil
		}
		return true
	})
	return kong.DefaultHelpPrinter(options, ctx)
}

// Parse reads the settings of a program that has nothing but settings: flags over environment over
// `.env` over defaults, checked. name is the program's, for help; `--help` and `--version` end the
// process. An error is one sentence for the operator.
func Parse(name string, args []string) (Settings, error) {
	var grammar struct {
		Settings `embed:""`
		HelpAll  HelpAll          `help:"Print help with all settings and exit. The flag --x-y is the setting NGIT_X_Y."`
		Version  kong.VersionFlag `help:"Print the version and exit."`
	}
	src := Process()
	description := "The " + name + " service of Tendril, a GRASP server."
	parser, err := NewParser(&grammar, src, kong.Name(name), kong.Description(description))
	if err != nil {
		return Settings{}, err
	}
	if _, err := parser.Parse(args); err != nil {
		return Settings{}, Sentence(err)
	}
	return grammar.Complete(src)
}

// NewParser makes a parser of a grammar that holds Settings somewhere, alone or as the flags of a
// command. What flags do not say, src does. After parsing, [Settings.Complete] must be called.
func NewParser(grammar any, src *Source, options ...kong.Option) (*kong.Kong, error) {
	parser, err := kong.New(grammar, append([]kong.Option{
		kong.Vars{"version": "tendril " + obs.Version()},
		kong.PostBuild(func(k *kong.Kong) error { ourFlags(k, src.setsConstants()); return nil }),
		kong.Resolvers(kong.ResolverFunc(src.resolve)),
		kong.ExplicitGroups(groups),
		kong.ConfigureHelp(helpOptions),
		kong.Help(shortHelp),
		kong.NamedMapper("bytes", mapper(decodeBytes)),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), mapper(decodeDuration)),
		kong.TypeMapper(reflect.TypeFor[[]string](), mapper(decodeList)),
		kong.TypeMapper(reflect.TypeFor[string](), mapper(decodeString)),
		kong.KindMapper(reflect.Int, mapper(decodeInt)),
		kong.KindMapper(reflect.Int64, mapper(decodeInt)),
		kong.TypeMapper(reflect.TypeFor[bool](), boolMapper{}),
	}, options...)...)
	if err != nil {
		return nil, fmt.Errorf("declare settings: %w", err)
	}
	return parser, nil
}

// ourFlags names every flag for its setting: NGIT_MAX_CONNECTIONS is --max-connections. It takes
// constants out, and all but the main settings out of --help. It also keeps kong from reading the
// environment by itself: that would take an empty value for a value, and it knows no `.env`.
func ourFlags(k *kong.Kong, constants bool) {
	k.Model.HelpFlag.Help = "Print this help and exit."
	eachFlag(k.Model.Node, func(flag *kong.Flag) bool {
		flag.Envs, flag.Tag.Envs = nil, nil
		env := flag.Tag.Get("env")
		if env == "" {
			return true
		}
		flag.Name = flagName(env)
		flag.Hidden = !flag.Tag.Has("main")
		if flag.Tag.Has("constant") {
			flag.Default = flag.Tag.Get("constant")
			flag.HasDefault = flag.Default != ""
			return constants
		}
		return true
	})
}

// eachFlag calls keep for every flag of a command and its commands, and removes those of which it
// reports false.
func eachFlag(node *kong.Node, keep func(*kong.Flag) bool) {
	node.Flags = slices.DeleteFunc(node.Flags, func(f *kong.Flag) bool { return !keep(f) })
	for _, child := range node.Children {
		eachFlag(child, keep)
	}
}

// flagName is the flag of a setting, without the dashes.
func flagName(env string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(env, prefix)), "_", "-")
}

// CheckOnly in the environment ends a program once its settings are read and found right.
const CheckOnly = "TENDRIL_CHECK_SETTINGS"

// Complete checks settings that were just parsed, sets the constants, brings the domain to its one
// spelling, drops malformed entries of lists of who is not welcome, and warns of them and of names
// in src that are no settings.
func (s Settings) Complete(src *Source) (Settings, error) {
	if err := src.refuse(); err != nil {
		return s, err
	}
	if !src.setsConstants() {
		if err := s.setConstants(); err != nil {
			return s, err
		}
	}
	s.Domain = strings.TrimRight(s.Domain, "/")
	dropped := s.Policy.dropMalformed()
	if err := s.Check(); err != nil {
		return s, err
	}
	var err error
	if s.Domain, err = nostr.NormalizeDomain(s.Domain); err != nil {
		return s, err // not reached: checked
	}
	if os.Getenv(CheckOnly) != "" {
		os.Exit(0)
	}
	s.Warnings = slices.Concat(src.warnings, src.strangers(), dropped, s.warnings())
	return s, nil
}

func (s *Settings) setConstants() error {
	for f := range s.fields() {
		constant, ok := f.Tag.Lookup("constant")
		if !ok || constant == "" {
			continue
		}
		if err := f.decode(constant, f.value); err != nil {
			return fmt.Errorf("%s: its declared value: %w", f.name(), err)
		}
	}
	return nil
}

// decode reads a text, number, size or time of a field's type.
func (f field) decode(text string, target reflect.Value) error {
	switch {
	case f.Type.Kind() == reflect.String:
		return decodeString(text, target)
	case f.Tag.Get("type") == "bytes":
		return decodeBytes(text, target)
	case f.Type == reflect.TypeFor[time.Duration]():
		return decodeDuration(text, target)
	}
	return decodeInt(text, target)
}

// Sentence takes out of a parser's error what an operator needs to read: what is wrong with a
// setting, or with the command line, and then which `--help` says what would be right.
func Sentence(err error) error {
	if wrong, ok := errors.AsType[*Error](err); ok {
		return wrong
	}
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		line := parse.Context.Model.Name
		for _, step := range parse.Context.Path {
			if step.Command != nil {
				line += " " + step.Command.Name
			}
		}
		return fmt.Errorf("%w (see \"%s --help\")", err, line)
	}
	return err
}

// setsConstants reports whether constants can be set.
func (s *Source) setsConstants() bool {
	return !s.product && (testProgram != "" || testing.Testing())
}

// Process is where the settings of this process come from: its environment, and `.env`.
func Process() *Source { return &Source{Environ: os.Environ(), Dir: "."} }

// mapper makes a kong mapper of a function that reads one value. A wrong one gives an *Error.
func mapper(decode func(text string, target reflect.Value) error) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		flag := "--" + ctx.Value.Name
		if ctx.Scan.Peek().Type == kong.EOLToken {
			return &Error{flag, "", "has no value: want " + flag + "=…"}
		}
		var text string
		if err := ctx.Scan.PopValueInto("value", &text); err != nil {
			return err
		}
		text = strings.TrimSpace(text)
		return wrong(ctx, text, decode(text, target))
	}
}

func wrong(ctx *kong.DecodeContext, value string, err error) error {
	if err == nil {
		return nil
	}
	name := ctx.Value.Tag.Get("env")
	if name == "" {
		name = ctx.Value.ShortSummary()
	}
	return &Error{name, value, err.Error()}
}

func decodeString(text string, target reflect.Value) error {
	target.SetString(text)
	return nil
}

func decodeInt(text string, target reflect.Value) error {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return errors.New("want a whole number")
	}
	target.SetInt(n)
	return nil
}

func decodeBytes(text string, target reflect.Value) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > 1<<62 {
		return errors.New("want a size, like 64MiB or 2GiB, or a number of bytes")
	}
	target.SetInt(int64(n))
	return nil
}

func decodeDuration(text string, target reflect.Value) error {
	d, err := time.ParseDuration(text)
	if err != nil {
		return errors.New("want a time with its unit, like 500ms, 30s, 5m or 24h")
	}
	target.SetInt(int64(d))
	return nil
}

// decodeList reads comma-separated values. A flag may also be repeated: the values add up.
func decodeList(text string, target reflect.Value) error {
	for item := range strings.SplitSeq(text, ",") {
		if item = strings.TrimSpace(item); item != "" {
			target.Set(reflect.Append(target, reflect.ValueOf(item)))
		}
	}
	return nil
}

// boolMapper reads switches: --x, --x=false, --x false, NGIT_X=true.
type boolMapper struct{}

// IsBool tells kong that the flag needs no value.
func (boolMapper) IsBool() bool { return true }

// Decode implements kong.Mapper.
func (boolMapper) Decode(ctx *kong.DecodeContext, target reflect.Value) error {
	next := ctx.Scan.Peek()
	text := strings.ToLower(strings.TrimSpace(fmt.Sprint(next.Value)))
	on := slices.Contains([]string{"true", "1", "yes", "on"}, text)
	legal := on || slices.Contains([]string{"false", "0", "no", "off"}, text)
	switch {
	case next.Type == kong.FlagValueToken && !legal:
		return wrong(ctx, text, errors.New("want true or false"))
	case next.Type == kong.FlagValueToken, next.Type == kong.UntypedToken && legal:
		ctx.Scan.Pop()
	default: // the switch alone; what comes next is not its value
		on = true
	}
	target.SetBool(on)
	return nil
}
