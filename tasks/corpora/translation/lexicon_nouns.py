"""Nouns, as plain tables; `lexicon.py` reads them.

Columns, two spaces or more apart: lemma, gender, genitive (`s`, `es`, `-` none, `weak` for the n-declension), plural (`-`
none), English (synonyms by `|`, the commonest first; an irregular plural after `:`), and what the noun is (the classes that
verbs ask for). `+in` derives the feminine (Lehrerin); `plural` and `one` limit the number, `mass` has none; `@kind` says how
the noun is used as a place (`PLACE_KINDS`).
A word that stands in several rows is ambiguous: the grammar uses it only where its neighbours leave one sense.
"""

from __future__ import annotations

PEOPLE = """
Lehrer       m  s     Lehrer       teacher               person relation job +in
Arzt         m  es    Ärzte        doctor|physician      person relation job
Ärztin       f  -     Ärztinnen    doctor|physician      person relation job
Nachbar      m  weak  Nachbarn     neighbour             person relation +in
Schüler      m  s     Schüler      pupil|student         person +in
Freund       m  es    Freunde      friend                person relation +in
Verkäufer    m  s     Verkäufer    salesperson:salespeople|shop_assistant  person job +in
Bäcker       m  s     Bäcker       baker                 person job +in
Gärtner      m  s     Gärtner      gardener              person job +in
Ingenieur    m  s     Ingenieure   engineer              person job +in
Student      m  weak  Studenten    student               person +in
Polizist     m  weak  Polizisten   police_officer        person job +in
Künstler     m  s     Künstler     artist                person job +in
Kollege      m  weak  Kollegen     colleague|co-worker   person relation
Kollegin     f  -     Kolleginnen  colleague|co-worker   person relation
Chef         m  s     Chefs        boss                  person relation +in
Gast         m  es    Gäste        guest|visitor         person relation
Kunde        m  weak  Kunden       customer|client       person
Kundin       f  -     Kundinnen    customer|client       person
Junge        m  weak  Jungen       boy|lad  person young
Mann         m  es    Männer       man:men|gentleman:gentlemen  person
Frau         f  -     Frauen       woman:women|lady  person
Kind         n  es    Kinder       child:children|kid    person young plural
Bruder       m  s     Brüder       brother               person family
Schwester    f  -     Schwestern   sister                person family
Vater        m  s     Väter        father|dad                person family one
Mutter       f  -     Mütter       mother|mum                person family one
Tochter      f  -     Töchter      daughter              person family
Sohn         m  es    Söhne        son                   person family
Onkel        m  s     Onkel        uncle                 person family one
Tante        f  -     Tanten       aunt                  person family one
Großmutter   f  -     Großmütter   grandmother|grandma           person family one
Richter      m  s     Richter      judge  person job +in
Musiker      m  s     Musiker      musician              person job +in
Koch         m  es    Köche        cook|chef             person job
Köchin       f  -     Köchinnen    cook|chef             person job
Bauer        m  weak  Bauern       farmer                person job
Leiter       m  s     Leiter       manager|director      person
Läufer       m  s     Läufer       runner                person
"""

ANIMALS = """
Hund         m  es    Hunde        dog                   animal pet
Katze        f  -     Katzen       cat                   animal pet
Pferd        n  es    Pferde       horse                 animal farm
Vogel        m  s     Vögel        bird                  animal pet
Schaf        n  es    Schafe       sheep:sheep           animal farm
Maus         f  -     Mäuse        mouse:mice            animal prey
Ente         f  -     Enten        duck                  animal farm
Schlange     f  -     Schlangen    snake                 animal
Hahn         m  es    Hähne        rooster|cockerel      animal farm
Strauß       m  es    Strauße      ostrich               animal
Fliege       f  -     Fliegen      fly                   insect prey
"""

FOOD = """
Apfel        m  s     Äpfel        apple                 food fruit
Birne        f  -     Birnen       pear                  food fruit
Kirsche      f  -     Kirschen     cherry                food fruit
Kartoffel    f  -     Kartoffeln   potato                food vegetable
Tomate       f  -     Tomaten      tomato                food vegetable
Zwiebel      f  -     Zwiebeln     onion                 food vegetable
Linse        f  -     Linsen       lentil                food vegetable plural
Brötchen     n  s     Brötchen     roll|bread_roll       food baked
Kuchen       m  s     Kuchen       cake                  food baked
Suppe        f  -     Suppen       soup                  food dish
Salat        m  es    Salate       salad                 food
Gericht      n  es    Gerichte     dish|meal             food dish
Ei           n  s     Eier         egg                   food dish
Fisch        m  es    Fische       fish:fish             food dish
Käse         m  s     -            cheese                food mass
Kaffee       m  s     -            coffee                drink mass
Tee          m  s     -            tea                   drink mass
Wein         m  es    -            wine                  drink mass
"""

CLOTHES = """
Mantel       m  s     Mäntel       coat|overcoat  clothes
Hemd         n  es    Hemden       shirt                 clothes
Kleid        n  es    Kleider      dress                 clothes
Hut          m  es    Hüte         hat                   clothes
Jacke        f  -     Jacken       jacket  clothes
Fliege       f  -     Fliegen      bow_tie               clothes
"""

VEHICLES = """
Auto         n  s     Autos        car                   vehicle car
Wagen        m  s     Wagen        car|vehicle           vehicle car
Bus          m  es    Busse        bus                   vehicle public
Zug          m  es    Züge         train                 vehicle public
Fahrrad      n  es    Fahrräder    bicycle|bike          vehicle bike
Boot         n  es    Boote        boat                  vehicle
"""

THINGS = """
Computer     m  s     Computer     computer              device switch
Fernseher    m  s     Fernseher    television|TV_set     device switch
Uhr          f  -     Uhren        clock                 device
Lampe        f  -     Lampen       lamp                  device switch
Radio        n  s     Radios       radio                 device switch
Maschine     f  -     Maschinen    machine               device switch
Birne        f  -     Birnen       bulb|light_bulb       spare
Feder        f  -     Federn       spring                spare
Hahn         m  es    Hähne        tap                   fitting
Schloss      n  es    Schlösser    lock                  fitting
Linse        f  -     Linsen       lens                  spare
Mutter       f  -     Muttern      nut                   screw
Schraube     f  -     Schrauben    screw                 screw
Tisch        m  es    Tische       table                 furniture surface
Stuhl        m  es    Stühle       chair                 furniture
Schrank      m  es    Schränke     cupboard|cabinet      furniture openable
Bett         n  es    Betten       bed                   furniture surface
Läufer       m  s     Läufer       rug                   cloth
Decke        f  -     Decken       blanket               cloth
Decke        f  -     Decken       ceiling               paintable one
Wand         f  -     Wände        wall                  paintable
Bank         f  -     Bänke        bench                 paintable seat
Tür          f  -     Türen        door                  openable paintable entry
Fenster      n  s     Fenster      window                openable entry
Tor          n  es    Tore         gate                  openable entry
Tor          n  es    Tore         goal                  goal
Kiste        f  -     Kisten       box|crate             openable load container
Koffer       m  s     Koffer       suitcase              openable load container
Paket        n  s     Pakete       parcel|package        openable load mail
Flasche      f  -     Flaschen     bottle                openable small container
Schlüssel    m  s     Schlüssel    key                   small
Tasse        f  -     Tassen       cup                   small container
Ball         m  es    Bälle        ball                  small
Schirm       m  es    Schirme      umbrella              small
Geschenk     n  es    Geschenke    present|gift          small openable
Strauß       m  es    Sträuße      bouquet               flowers
Leiter       f  -     Leitern      ladder                load
Blume        f  -     Blumen       flower                flowers plant
Baum         m  es    Bäume        tree                  plant tree
Kiefer       f  -     Kiefern      pine|pine_tree        plant tree
Blatt        n  es    Blätter      leaf:leaves           litter
Feder        f  -     Federn       feather               litter
Klavier      n  s     Klaviere     piano                 instrument
Geige        f  -     Geigen       violin                instrument
Gitarre      f  -     Gitarren     guitar                instrument
Flügel       m  s     Flügel       grand_piano           instrument
Flügel       m  s     Flügel       wing                  limb
Bein         n  es    Beine        leg                   limb
Absatz       m  es    Absätze      heel                  heel
Schuh        m  es    Schuhe       shoe                  shoe clothes plural
Schlange     f  -     Schlangen    queue|line            queue
"""

TEXTS = """
Buch         n  es    Bücher       book                  text sold
Zeitung      f  -     Zeitungen    newspaper|paper       text sold press
Gedicht      n  es    Gedichte     poem                  text work
Bericht      m  es    Berichte     report|account  text document work
Vertrag      m  es    Verträge     contract|agreement    text document
Rechnung     f  -     Rechnungen   bill|invoice          text document
Brief        m  es    Briefe       letter                text document mail work letter
Formular     n  s     Formulare    form                  text document formal
Liste        f  -     Listen       list                  text document work
Absatz       m  es    Absätze      paragraph             text passage
Blatt        n  es    Blätter      sheet|page            document
Karte        f  -     Karten       postcard|card         mail work
Karte        f  -     Karten       map                   chart
Foto         n  s     Fotos        photo|picture         image photo
Bild         n  es    Bilder       picture|painting      image
Film         m  es    Filme        film|movie            show
"""

ABSTRACT = """
Konzert      n  es    Konzerte     concert               event show
Prüfung      f  -     Prüfungen    exam|test             event exam
Fest         n  es    Feste        party|celebration     event
Reise        f  -     Reisen       trip|journey          event
Hochzeit     f  -     Hochzeiten   wedding               event
Spiel        n  es    Spiele       game|match            event show
Kurs         m  es    Kurse        course|class          event
Problem      n  s     Probleme     problem|issue  topic hard
Frage        f  -     Fragen       question              topic query
Idee         f  -     Ideen        idea                  topic
Lösung       f  -     Lösungen     solution              topic
Fehler       m  s     Fehler       mistake|error         topic
Geschichte   f  -     Geschichten  story|tale            topic work tale
Aufgabe      f  -     Aufgaben     task|exercise         hard
Termin       m  s     Termine      appointment           event
Angebot      n  es    Angebote     offer                 topic offer
Einladung    f  -     Einladungen  invitation            mail topic letter offer
Rede         f  -     Reden        speech                speech
Lied         n  es    Lieder       song|tune  music
Musik        f  -     -            music                 sound mass
Ton          m  es    Töne         sound|tone            sound
Ton          m  s     -            clay                  clay mass
Arbeit       f  -     -            work                  labour mass
Hilfe        f  -     -            help|assistance       aid mass
Rat          m  es    -            advice                aid mass
Geld         n  es    -            money                 aid mass
"""

PLACES = """
Haus         n  es    Häuser       house                 building sold home @in
Schule       f  -     Schulen      school                building @at
Bahnhof      m  es    Bahnhöfe     station|railway_station  building @an
Kirche       f  -     Kirchen      church                building @in
Museum       n  s     Museen       museum                building @at
Krankenhaus  n  es    Krankenhäuser  hospital            building @at
Hotel        n  s     Hotels       hotel                 building @at
Restaurant   n  s     Restaurants  restaurant            building @at
Kino         n  s     Kinos        cinema                building @at
Bibliothek   f  -     Bibliotheken  library              building @at
Bäckerei     f  -     Bäckereien   bakery                building @in
Schloss      n  es    Schlösser    castle|palace         building @in
Gericht      n  es    Gerichte     court|courthouse      building
Bank         f  -     Banken       bank                  firm
Flughafen    m  s     Flughäfen    airport               building @an
Laden        m  s     Läden        shop|store            building @in
Brücke       f  -     Brücken      bridge                building street @on
Küche        f  -     Küchen       kitchen               room @in
Keller       m  s     Keller       cellar|basement       room @in
Büro         n  s     Büros        office                room @in
Zimmer       n  s     Zimmer       room                  room home @in
Flur         m  s     Flure        hallway|corridor      room @in
Bad          n  es    Bäder        bathroom              room @in
Garten       m  s     Gärten       garden                outside @in
Wohnung      f  -     Wohnungen    flat|apartment        room sold home @in
Park         m  s     Parks        park                  outside @in
Stadt        f  -     Städte       city|town             town @town
Dorf         n  es    Dörfer       village               town @town
Wald         m  es    Wälder       forest|wood           outside @in
Strand       m  es    Strände      beach                 outside @beach
See          m  s     Seen         lake                  outside @water
Fluss        m  es    Flüsse       river                 outside street @water
Markt        m  es    Märkte       market                @mkt
Straße       f  -     Straßen      street|road           @on street
Schalter     m  s     Schalter     counter|desk          counter
"""

TABLES = (PEOPLE, ANIMALS, FOOD, CLOTHES, VEHICLES, THINGS, TEXTS, ABSTRACT, PLACES)

# German preposition for being there; preposition and case for going there; English for both (synonyms by `|`).
PLACE_KINDS = {
    "@in": ("in", "in", "acc", "in", "into|to"),
    "@town": ("in", "in", "acc", "in", "to"),
    "@at": ("in", "in", "acc", "at|in", "to"),
    "@an": ("an", "zu", "dat", "at", "to"),
    "@on": ("auf", "auf", "acc", "on", "onto|to"),
    "@water": ("an", "an", "acc", "by|at", "to"),
    "@beach": ("an", "an", "acc", "on|at", "to"),
    "@mkt": ("auf", "auf", "acc", "at", "to"),
}

# Compounds by rule: any modifier of a group before any head of it. A modifier row gives the word, its linking element (as
# `morphology.linked` takes it) and its English.
COMPOUND_MODIFIERS = """
Küche         *    kitchen
Kirche        *    church
Woche         *    weekly
Bibliothek    *    library
Hochzeit      *    wedding
Versicherung  *    insurance
Garten        -    garden
Büro          -    office
Hotel         -    hotel
Keller        -    cellar
Bahnhof       s    station
Arbeit        s    work
Geburtstag    s    birthday
Kind          er   children's
Schule        cut  school
Kirsche       cut  cherry
Miete         cut  rental
Reise         -    travel
Wetter        -    weather
Kauf          -    purchase
Apfel         -    apple
Kartoffel     -    potato
Tomate        *    tomato
Zwiebel       -    onion
Käse          -    cheese
Winter        -    winter
Sommer        -    summer
Musik         -    music
Sport         -    sports
Kunst         -    art
"""

COMPOUND_GROUPS = (
    ("Küche Garten Büro Schule Hotel Kirche Bibliothek", "Tür Fenster Tisch Schrank Lampe Uhr Stuhl"),
    ("Keller Büro Garten", "Tür Fenster Schlüssel"),
    ("Bahnhof", "Tür Fenster Uhr"),
    ("Apfel Kirsche", "Kuchen"),
    ("Kartoffel Tomate Zwiebel Käse", "Suppe Salat"),
    ("Kauf Miete Versicherung Arbeit", "Vertrag"),
    ("Reise Schule Wetter Woche", "Bericht"),
    ("Kind Winter Sommer Arbeit", "Schuh Jacke Mantel Kleid"),
    ("Geburtstag Hochzeit", "Geschenk Kuchen Fest"),
    ("Musik Sport Kunst", "Lehrer Kurs"),
)
