"""Verbs, as plain tables; `lexicon.py` reads them.

Columns: infinitive (a separable prefix before `|`), English (synonyms by `;`, the commonest first; a movable particle is marked
`+`), classes of the subject, what the verb asks for, flags.
What it asks for: `case:classes`, or `preposition.case>English preposition:classes`. `dat>to` may move in English (give it to
her, give her it), `dat=to` may not (explain it to her). `sich`, `sich3` is the reflexive in accusative or dative. `dir`, `loc`
and `city` are places to go to or to be at. `zu`, `ing`, `both` is an infinitive clause (English infinitive, gerund, either),
`dass`, `ob` a finite one.
Flags: `dur` goes on for years; `state` has no progressive; `care`, `move`, `speak` are the manners that fit; `act` may be
passive; `like` turns dative and nominative round in English; `luck` nobody does on purpose; `full` needs all its slots; `get`
has an object that is not one's own yet; `shop` may name a price.
"""

from __future__ import annotations

HANDLING = """
kaufen         buy;purchase             person  acc:goods                    act shop get
verkaufen      sell                     person  acc:goods                    act shop
bestellen      order                    person  acc:dish,drink,device,furniture,car,clothes  act get
suchen         look for;search for      person  acc:lost,person,spare        dur
finden         find;come across         person  acc:lost,flowers,spare,litter  luck
verlieren      lose                     person  acc:lost  luck
brauchen       need;require             person  acc:lost,device,spare,goods  state dur
benutzen       use                      person  acc:device,bike,car,chart
reparieren     repair;fix               person  acc:vehicle,device,fitting,entry,heel  act care
wechseln       replace;change  person  acc:spare,fitting            act
fest|ziehen    tighten                  person  acc:screw                    act care
putzen         clean;polish             person  acc:room,entry,furniture,shoe  act care
waschen        wash                     person  acc:clothes,cloth,car,fruit,vegetable  act care
streichen      paint;repaint  person  acc:paintable,room           act care
bauen          build                    person  acc:building,furniture,bike  act get
öffnen         open                     person  acc:openable                 act care
schließen      close;shut               person  acc:openable                 act care
auf|machen     open                     person  acc:openable                 act care
zu|machen      close;shut               person  acc:openable                 act care
ab|schließen   lock +up                 person  acc:entry,building       act
an|machen      switch +on;turn +on      person  acc:switch                   act
aus|machen     switch +off;turn +off    person  acc:switch                   act
holen          get;fetch                person  acc:portable  get
bringen        bring                    person  acc:portable dir
mit|bringen    bring +along             person  acc:goods2
weg|werfen     throw +away              person  acc:food,litter,text,small   act
ein|packen     pack +up;wrap +up        person  acc:portable                 act care
aus|packen     unpack                   person  acc:load,small               act care
auf|heben      pick +up                 person  acc:small,litter             act care
tragen         carry                    person  acc:load dir                 care
tragen         wear                     person  acc:clothes                  dur
an|ziehen      put +on                  person  acc:clothes
aus|ziehen     take +off                person  acc:clothes,shoe
an|probieren   try +on                  person  acc:clothes
stellen        put                      person  acc:furniture,load dir>in:room       care
stellen        ask                      person  acc:query                    act
stehlen        steal                    person  acc:small,bike,image         act get
malen          paint;draw               person  acc:animal,image,flowers,building,litter    act care get
mieten         rent;hire                person  acc:home,car,bike           act get
fahren         drive  person  acc:car
fahren         ride                     person  acc:bike
verpassen      miss                     person  acc:public,event             state luck
betreten       enter                    person  acc:room,building,firm       act get
verlassen      leave                    person  acc:room,building,town,firm
pflanzen       plant                    person  acc:tree,plant               act
fällen         cut +down;fell  person  acc:tree                     act
formen         shape                    person  acc:clay                     care
essen          eat;have  person  acc:food
trinken        drink;have  person  acc:drink
kochen         cook;prepare             person  acc:dish,vegetable           act care
probieren      try;taste                person  acc:food,drink
schneiden      cut;slice                person  acc:fruit,vegetable,baked    act care
backen         bake                     person  acc:baked                    act
bezahlen       pay for                  person  acc:food,drink,goods         act
fangen         catch                    person,pet  acc:prey  get
füttern        feed                     person  acc:animal                   act
schießen       score                    person  acc:goal  luck
untersuchen    examine;inspect  person  acc:limb,vehicle,device,farm  act care
an|stellen     queue up;line up         person  sich an.dat>at:counter
"""

MIND = """
lesen          read                     person  acc:text                     act care
schreiben      write                    person  acc:work,passage             act care
unterschreiben  sign                    person  acc:document                 act
übersetzen     translate                person  acc:text,passage,tale        act care
drucken        print;print +out  person  acc:document,photo           act
aus|füllen     fill +in;complete        person  acc:formal                   act care
verstehen      understand  person  acc:topic,text               state
lösen          solve                    person  acc:hard                     act
beantworten    answer                   person  acc:query,letter              act
besprechen     discuss                  person  acc:topic,document           act
planen         plan;arrange  person  acc:event                    act care
vor|bereiten   prepare                  person  acc:event,speech             act care
ab|sagen       cancel;call +off         person  acc:event                    act
an|nehmen      accept                   person  acc:offer                    act
ab|lehnen      reject;turn +down        person  acc:offer                    act
halten         give;deliver             person  acc:speech                   speak
hören          hear                     person  acc:sound,music              state
auf|nehmen     record                   person  acc:sound,music,show         act
singen         sing;perform  person  acc:music                    speak
spielen        play                     person  acc:instrument
sehen          see;spot                 person  acc:person,animal,building,flowers,vehicle  state
an|sehen       watch                    person  sich3 acc:show
an|sehen       look at                  person  sich3 acc:image,building,chart
kennen         know                     person  acc:person,building,town     state dur
vergessen      forget                   person  acc:small,event,clothes,text  state luck
besuchen       visit                    person  acc:person,building,town     act get
ein|laden      invite                   person  acc:person zu.dat>to:event   act
an|rufen       call;phone               person  acc:person
treffen        meet                     person  acc:person
fragen         ask                      person  acc:person nach.dat>about:event,lost  speak
begrüßen       greet;welcome            person  acc:person                   speak
warnen         warn;caution  person  acc:person vor.dat>about:animal,hard  speak
wecken         wake +up                 person  acc:person
ab|holen       pick +up;collect         person  acc:person,mail
ein|stellen    hire;take +on            person  acc:job                      act
ein|stellen    adjust;set               person  acc:device,fitting           act care
helfen         help;assist              person  dat:person bei.dat>with:labour,hard
danken         thank                    person  dat:person für.acc>for:offer,flowers
folgen         follow                   person,pet  dat:person,animal        move
zu|hören       listen to                person  dat:person                   care
begegnen       meet;run into            person  dat:person  luck
gefallen       like;enjoy  text,show,building,clothes,image,music,town  dat:person  like state
schmecken      like;enjoy  food,drink  dat:person               like state
gehören        belong to                vehicle,lost,building,instrument,farm  dat:person  state
fehlen         miss                     family,pet  dat:person               like state
geben          give                     person  dat>to:person acc:portable
schenken       give                     person  dat>to:person acc:gift
schicken       send                     person  dat>to:person acc:mail,text,photo,flowers
zeigen         show  person  dat>to:person acc:image,home,building,text,chart
leihen         lend;loan  person  dat>to:person acc:car,bike,small,text,load
an|bieten      offer                    person  dat>to:person acc:food,drink,labour
vor|lesen      read                     person  dat>to:person acc:work,passage  speak
zurück|geben   return;give +back        person  dat=to:person acc:small,text,load
erklären       explain                  person  dat=to:person acc:topic,hard  speak
beschreiben    describe                 person  dat=to:person acc:topic,building,image  speak
empfehlen      recommend                person  dat=to:person acc:text,show,dish,town  get
warten         wait                     person  auf.acc>for:public,person,letter  dur
warten         wait                     person  in.dat>in:queue
sprechen       speak;talk               person  mit.dat>to:person            speak
sprechen       speak;talk               person  über.acc>about:topic,event,text  speak
denken         think                    person  an.acc>about:event,person,topic  state
lachen         laugh                    person  über.acc>about:topic,show    speak
teil|nehmen    take part;participate    person  an.dat>in:event
freuen         look forward             person  sich auf.acc>to:event  luck
interessieren  be interested            person  sich für.acc>in:topic,animal,image  state luck
erinnern       remember;recall          person  sich an.acc:event,person,tale  state
beschweren     complain                 person  sich über.acc>about:sound,dish,person
kümmern        take care                person  sich um.acc>of:animal,family,flowers  dur
verlieben      fall in love             person  sich in.acc>with:person  luck
bitten         ask                      person  acc:person um.acc>for:aid,text  speak full
erzählen       tell                     person  dat:person von.dat>about:event,topic  speak full
verzichten     do                       person  auf.acc>without:drink,car,mass
an|fangen      begin;start              event,show  -
beginnen       begin;start              event,show  -
auf|hören      stop;end                 sound,show  -  luck
statt|finden   take place;be held       event   -
"""

MOTION = """
arbeiten       work                     person  loc                          dur care
arbeiten       work                     person  bei.dat>at:firm,press          dur
wohnen         live                     person  loc:home,town                          dur state
leben          live                     person,farm  loc:town,outside                     dur
schlafen       sleep                    person,animal  -
sitzen         sit                      person  auf.dat>on:seat,furniture    dur
liegen         lie                      pet     auf.dat>on:surface
tanzen         dance                    person  loc
lachen         laugh                    person  -                            speak
gehen          go;walk                  person  dir                          move
laufen         run                      person,pet  dir                      move
fahren         go;travel                person  dir:building,town,outside
reisen         travel;go  person  city
fliegen        fly                      person  city
zurück|kehren  return;come back         person  dir:building,town
zurück|kommen  come back;return         person  -
weg|laufen     run away                 pet,animal  -
an|kommen      arrive                   person,public  -
ab|fahren      leave;depart             public  -
auf|stehen     get up                   person  -
auf|wachen     wake up                  person,pet  -                        early luck
ein|schlafen   fall asleep              person,pet  -  luck
ein|steigen    get                      person  in.acc>on:public
aus|steigen    get                      person  aus.dat>off:public
um|ziehen      move                     person  city
bleiben        stay;remain              person  loc
wachsen        grow                     plant,vegetable  loc:outside,town
"""

CLAUSAL = """
versuchen      try;attempt              person  zu
vergessen      forget                   person  zu
planen         plan;intend              person  zu  state
hoffen         hope                     person  zu  state
versprechen    promise                  person  zu
an|fangen      begin;start              person  both
beginnen       begin;start              person  both
auf|hören      stop                     person  ing
weigern        refuse                   person  sich zu
vor|haben      intend;plan              person  zu  state
bitten         ask                      person  acc:person zu
helfen         help                     person  dat:person zu
erlauben       allow;permit  person  dat:person zu
raten          advise                   person  dat:person zu
sagen          say                      person  dass
glauben        believe;think            person  dass  state
wissen         know                     person  dass  state
hoffen         hope                     person  dass
hören          hear                     person  dass  state
bemerken       notice;realise  person  dass  state
erzählen       tell                     person  dat:person dass
fragen         ask                      person  acc:person ob
fragen         wonder                   person  sich ob
"""

# Third person singular present, past stem, participle of what is not regular; separable verbs use their base.
STRONG = """
fahren fährt fuhr gefahren; essen isst aß gegessen; trinken trinkt trank getrunken; lesen liest las gelesen
schreiben schreibt schrieb geschrieben; schließen schließt schloss geschlossen; finden findet fand gefunden
verlieren verliert verlor verloren; ziehen zieht zog gezogen; waschen wäscht wusch gewaschen
werfen wirft warf geworfen; streichen streicht strich gestrichen; bringen bringt brachte gebracht
heben hebt hob gehoben; tragen trägt trug getragen; brechen bricht brach gebrochen; stehlen stiehlt stahl gestohlen
lassen lässt ließ gelassen; treten tritt trat getreten; schneiden schneidet schnitt geschnitten
backen backt backte gebacken; fangen fängt fing gefangen; schießen schießt schoss geschossen
stehen steht stand gestanden; sprechen spricht sprach gesprochen; nehmen nimmt nahm genommen
halten hält hielt gehalten; singen singt sang gesungen; sehen sieht sah gesehen; kennen kennt kannte gekannt
laden lädt lud geladen; rufen ruft rief gerufen; treffen trifft traf getroffen; helfen hilft half geholfen
fallen fällt fiel gefallen; geben gibt gab gegeben; leihen leiht lieh geliehen; bieten bietet bot geboten
denken denkt dachte gedacht; bitten bittet bat gebeten; beginnen beginnt begann begonnen
schlafen schläft schlief geschlafen; sitzen sitzt saß gesessen; liegen liegt lag gelegen; gehen geht ging gegangen
laufen läuft lief gelaufen; fliegen fliegt flog geflogen; kommen kommt kam gekommen; steigen steigt stieg gestiegen
bleiben bleibt blieb geblieben; wachsen wächst wuchs gewachsen; raten rät riet geraten; wissen weiß wusste gewusst
haben hat hatte gehabt; sein ist war gewesen; werden wird wurde geworden; vergessen vergisst vergaß vergessen
verlassen verlässt verließ verlassen; empfehlen empfiehlt empfahl empfohlen; müssen muss musste gemusst
können kann konnte gekonnt; wollen will wollte gewollt; sollen soll sollte gesollt; dürfen darf durfte gedurft
möchten möchte mochte gemocht
"""
